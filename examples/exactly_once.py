"""Consume, process, produce in one step: the ack, the result and the count are one transaction."""

import tempfile

import penstock


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, penstock.open(folder) as fabric:
        words = fabric.queue("words")
        lengths = fabric.queue("lengths")
        counts = fabric.table("counts")
        words.push_many([b"pen", b"stock", b"gate"])

        while (message := words.pop()) is not None:
            with fabric.transaction() as transaction:
                transaction.ack(message)
                transaction.push(lengths, b"%d" % len(message.value))
                transaction.put(counts, message.value, b"1")
            # If the process dies before this line, all three happened, or none.

        print(sorted(int(message.value) for message in lengths.pop_many(10)))
        words_seen = counts.keys()
        print([word.decode() for word in words_seen])


if __name__ == "__main__":
    main()
