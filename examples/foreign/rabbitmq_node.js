// Publish a task and receive its result from Node, with only amqplib.
const amqp = require("amqplib");
const { randomUUID } = require("node:crypto");

const queue = process.env.QUEUE ?? "umbel.default.any";
const direct = "amq.rabbitmq.reply-to";

async function main() {
  const connection = await amqp.connect(process.env.AMQP_URL ?? "amqp://guest:guest@localhost/%2F");
  const channel = await connection.createChannel();
  const answered = new Promise((resolve) => channel.consume(direct, resolve, { noAck: true }));
  const event = {
    specversion: "1.0",
    id: randomUUID(),
    type: "umbel.command",
    source: "/shop/checkout",
    subject: "hello.add",
    data: { args: [20, 22] },
  };
  channel.sendToQueue(queue, Buffer.from(JSON.stringify(event)), {
    contentType: "application/cloudevents+json",
    persistent: true,
    replyTo: direct,
    correlationId: event.id,
  });
  const answer = await answered;
  const document = { data: JSON.parse(answer.content.toString()) };
  for (const [name, value] of Object.entries(answer.properties.headers)) {
    document[name.replace("cloudEvents_", "")] = value;
  }
  console.log(JSON.stringify(document));
  await connection.close();
}

main();
