"""The page of environment variables, from the flags that read them."""

from reference.commands import commands, option_row
from reference.markdown import page, table


def environment_page() -> str:
    from packhorse.cli import main
    from packhorse.client.loading.ranks import _SIGNS_IN_ENVIRONMENT
    from packhorse.client.transport._proxies import EXEMPTIONS, VARIABLES

    meanings: dict[str, tuple[list[str], str]] = {}
    for name, command in commands(main):
        for option in command.params:
            variable = getattr(option, "envvar", None)
            if variable:
                variables = [variable] if isinstance(variable, str) else variable
                for one in variables:
                    readers, _ = meanings.setdefault(one, ([], option_row(name, option)[2]))  # type: ignore[arg-type]
                    readers.append(f"`{name} {option.opts[0]}`")
    rows = [(f"`{name}`", ", ".join(readers), meaning) for name, (readers, meaning) in sorted(meanings.items())]
    rows += [
        (
            ", ".join(f"`{name}`" for name in (*VARIABLES, *EXEMPTIONS)),
            "clients",
            "The HTTP proxy on the way to servers, and the hosts that are reached "
            "[without it](troubleshooting.md#a-proxy-is-on-the-way).",
        ),
        ("`RANK`, `WORLD_SIZE`", "loaders", "Rank and number of processes, as torchrun and others set them."),
        (
            ", ".join(f"`{name}`" for name in _SIGNS_IN_ENVIRONMENT),
            "loaders",
            "Above 1, they say that ranks share a model. The loader then asks for "
            "[the data-parallel rank](model-parallelism.md).",
        ),
    ]
    return page(
        "Every environment variable",
        "A flag or an argument comes before its variable.",
        table(("variable", "read by", "meaning"), rows),
    )
