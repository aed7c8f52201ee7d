"""One of several programs leads: an entry that is bound to a session, and goes with it."""

import tempfile

import penstock
from penstock.errors import ConflictError


def try_to_lead(fabric: penstock.Fabric, name: str) -> penstock.Session | None:
    session = fabric.session(ttl=5.0)
    try:
        fabric.table("leaders").put("job", name.encode(), if_version=0, session=session)
    except ConflictError:
        session.close()
        return None
    return session


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, penstock.open(folder) as fabric:
        first = try_to_lead(fabric, "first")
        second = try_to_lead(fabric, "second")
        print("first leads:", first is not None, "- second leads:", second is not None)
        assert first is not None
        first.close()  # or its process dies: then the session ends by itself, after 5 s
        third = try_to_lead(fabric, "third")
        print("third leads:", third is not None)


if __name__ == "__main__":
    main()
