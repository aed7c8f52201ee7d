"""One protocol core, two shells: blocking and asyncio."""
