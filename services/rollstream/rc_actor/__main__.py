"""`python -m rollstream.rc_actor`: as source document 003 types it, with another package's name."""

if __name__ == "__main__":
    from rollstream.cli.main import run
    from rollstream.cli.rc_actor import command

    run(command, "python -m rollstream.rc_actor")
