"""The commands that show what is built in: `models` and `clusters`. cli.py puts them among the others."""

from __future__ import annotations

from typing import Annotated

import typer

from seqplan.cli_options import JsonFlag
from seqplan.planner.errors import SeqplanError


def models(
    model: Annotated[str | None, typer.Argument(metavar="[MODEL]", help="one model, by name or file")] = None,
    as_json: JsonFlag = False,
) -> None:
    """List the built-in models, or show one.

    One is shown with its exact parameter count and its shape.
    """
    from seqplan import cli_inputs, profiles, render, render_catalog

    if model is None:
        known = [cli_inputs.read_model(name)[0] for name in profiles.model_names()]
        if as_json:
            render.show_json({"models": [render.model_counts(each) for each in known]})
        else:
            render_catalog.show_models(known)
        return
    spec, notes = cli_inputs.read_model(model)
    if as_json:
        render.show_json({**render.model_counts(spec), "notes": notes})
    else:
        render_catalog.show_model(spec, notes)


def clusters(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="a cluster, by name or file; or a built-in device or link"),
    ] = None,
    parts: Annotated[
        bool, typer.Option("--devices", help="list the devices and links that a cluster file may name")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """List the built-in clusters, or show one.

    One is shown with every number and its source.
    """
    from seqplan import cli_inputs, profiles, render, render_catalog
    from seqplan.profiles import parts as built_in

    if parts and name is not None:
        raise SeqplanError(f"--devices lists them all, and {name} asks for one.", "Give one of the two.")
    if name is not None:
        part = built_in.load_part(name)
        spec = cli_inputs.read_cluster(name) if part is None else part
        if as_json:
            render.show_json(spec)
        elif part is None:
            render_catalog.show_cluster(cli_inputs.read_cluster(name))
        else:
            render_catalog.show_part(part)
    elif parts:
        devices, links = built_in.load_devices(), built_in.load_links()
        if as_json:
            dumped = {
                "devices": [each.model_dump(mode="json") for each in devices],
                "links": [each.model_dump(mode="json") for each in links],
            }
            render.show_json(dumped)
        else:
            render_catalog.show_parts(devices, links)
    else:
        known = [cli_inputs.read_cluster(each) for each in profiles.cluster_names()]
        if as_json:
            render.show_json({"clusters": [each.model_dump(mode="json") for each in known]})
        else:
            render_catalog.show_clusters(known)
