// Publish a task and receive its result over AMQP 1.0 from Node, with only rhea.
const { randomUUID } = require("node:crypto");
const rhea = require("rhea");

// The address of `umbel router` or `umbel publisher`.
const [host, port] = (process.env.ROUTER ?? "127.0.0.1:5680").split(":");
const id = randomUUID();

const connection = rhea.create_container().connect({ host, port, reconnect: false });
// The server chooses the address for the answer.
const inbox = connection.open_receiver({ source: { dynamic: true } });
const commands = connection.open_sender("commands");

inbox.once("receiver_open", () => {
  commands.send({
    reply_to: inbox.source.address,
    correlation_id: id,
    content_type: "application/json",
    // CloudEvents in binary mode: the attributes are properties, the body is the data.
    application_properties: {
      "cloudEvents:specversion": "1.0",
      "cloudEvents:id": id,
      "cloudEvents:type": "umbel.command",
      "cloudEvents:source": "/shop/checkout",
      "cloudEvents:subject": "hello.add",
    },
    body: rhea.message.data_section(Buffer.from(JSON.stringify({ args: [20, 22] }))),
  });
});

commands.on("rejected", ({ delivery }) => {
  console.error("refused:", delivery.remote_state.error.description);
  process.exitCode = 1;
  connection.close();
});

inbox.on("message", ({ message }) => {
  const document = { data: JSON.parse(message.body.content.toString()) };
  for (const [name, value] of Object.entries(message.application_properties)) {
    document[name.replace("cloudEvents:", "")] = value;
  }
  console.log(JSON.stringify(document));
  connection.close();
});

connection.on("disconnected", ({ error }) => {
  if (error) {
    console.error("no connection:", error.message);
    process.exitCode = 3;
  }
});
