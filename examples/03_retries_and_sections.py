"""A task that fails is run again. Sections define what a failure means.

In one terminal:   umbel -A 03_retries_and_sections worker
In another:        python 03_retries_and_sections.py
"""

from umbel import Retry, Umbel, current, optional, poisonous, retry

app = Umbel()


@app.task(retry=Retry(5, first=0.05))
def flaky() -> str:
    if current.job.attempt < 3:
        raise ConnectionError("the other side is not there yet")
    return f"worked at attempt {current.job.attempt}"


@app.task(retry=Retry(5, first=0.05))
def order(quantity: int) -> str:
    with poisonous():  # wrong input stays wrong: do not try again
        if quantity < 1:
            raise ValueError("quantity must be at least 1")
    with optional(KeyError):  # not essential: logged and skipped
        raise KeyError("no coupon")
    with retry(1, first=0.05):  # this part has its own, smaller number of tries
        raise TimeoutError("the shop does not answer")


if __name__ == "__main__":
    print("flaky:", flaky.delay().get(timeout=30))
    for quantity in (0, 2):
        handle = order.delay(quantity)
        try:
            handle.get(timeout=30)
        except (ValueError, TimeoutError) as error:
            record = handle.record()
            print(f"order({quantity}): {error!r}, {record.state} after {len(record.attempts)} runs")
