"""A queue, a topic and a table in one program, without a server."""

import tempfile

import penstock


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, penstock.open(folder) as fabric:
        orders = fabric.queue("orders")
        orders.push(b"one")
        orders.push_many([b"two", b"three"])
        for message in orders.consume(idle_timeout=0.2):
            print("order:", message.value.decode())
            message.ack()

        clicks = fabric.topic("clicks", partitions=4)
        clicks.publish(b"/home", key=b"session-7")
        clicks.publish(b"/cart", key=b"session-7")
        for partition in range(4):
            for batch in clicks.read(partition, offset=0):
                for row in batch:
                    print("click:", partition, row.offset, row.value.decode())

        sites = fabric.table("sites")
        version = sites.put("oslo", b"up")
        sites.put("oslo", b"down", if_version=version)
        print("oslo is", (sites.get("oslo") or b"unknown").decode())


if __name__ == "__main__":
    main()
