"""Models that are saved in folders, and shared on Hugging Face's hub."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from sparsesnn.errors import CheckpointError, ConfigError, DescriptionError
from sparsesnn.layers import Neuron
from sparsesnn.layers.catalog import define
from sparsesnn.model_card import ModelCard
from sparsesnn.model_folder import Settings, dtype_of, hub, local_folder, read_model, write_model

if TYPE_CHECKING:
    from typing_extensions import Self

    from sparsesnn.network import Network


class Stored(nn.Module):
    """The part of `Model` that writes and reads folders."""

    if TYPE_CHECKING:
        network: Network
        backend: str
        dense_mode: str
        weight_dtype: str
        layers: nn.ModuleDict
        parts: Any

        def settled(self) -> Any: ...

    def save(self, folder: str | Path, *, card: ModelCard | None = None, overwrite: bool = False) -> None:
        """Writes the model to a folder: `model.safetensors`, `config.json`, and a card, `README.md`. `load` gives the same bits.

        Args:
            folder: appears whole or not at all.
            card: the content of the card besides the network.
            overwrite: replace the model that the folder holds; other files in it stay.

        Errors: `ConfigError` for a folder with files, unless `overwrite`, and for one that cannot be written: an older model is then intact.
        `DescriptionError` for a network over ranks.
        """
        if self.parts:
            raise DescriptionError(
                "save: the network is divided over ranks; save a checkpoint, and on one rank sparsesnn.train.load_run(…).save(…)"
            )
        tensors: dict[str, Tensor] = {}
        seeds: dict[str, int] = {}
        with self.settled():
            for name, child in self.layers.items():
                layer: Any = child
                saved = [x for x in layer.tensor_names if x not in layer._non_persistent_buffers_set]
                tensors |= {f"layers.{name}.{own}": layer.tensor(own).detach() for own in saved}
                if layer.training_steps is not None:
                    seeds[name] = layer.rotation_seed
        dtype = str(next(x for x in tensors.values() if x.is_floating_point()).dtype).removeprefix("torch.")
        settings = Settings(self.backend, self.dense_mode, self.weight_dtype, dtype, seeds)
        write_model(Path(folder), self.network, settings, tensors, card or ModelCard(), overwrite)

    @classmethod
    def load(cls, folder: str | Path, *, backend: str | None = None, neurons: Sequence[type[Neuron]] = ()) -> Self:
        """Reads a model from a folder of `save`, in training mode, as every new model is. No code in the folder is run.

        Args:
            backend: None: that of the saved model.
            neurons: your own neuron models in the network, such as [ALIF].

        Errors: `CheckpointError` for a folder that is missing, damaged, or not of `save`.
        """
        for model in neurons:
            define(model)
        saved = read_model(Path(folder))
        settings = saved.settings
        moves = backend is not None and backend != settings.backend
        modes: dict[str, Any] = {
            "dense_mode": "auto" if moves else settings.dense_mode,
            "weight_dtype": settings.weight_dtype,
        }
        try:
            made = cls(saved.network, backend=backend or settings.backend, **modes)
        except (ConfigError, DescriptionError) as error:
            if backend is not None:
                raise
            raise CheckpointError(f"{saved.where}: {error}; or give another backend=…") from None
        made = made.to(dtype_of(settings))
        try:
            made.load_state_dict(saved.tensors)
        except CheckpointError as error:
            raise CheckpointError(f"{saved.where}: does not hold the tensors of its network: {error}") from None
        for name, seed in settings.rotation_seeds.items():
            layer: Any = made.layers[name]
            layer.rotation_seed = seed
        return made

    def save_pretrained(self, folder: str | Path, *, card: ModelCard | None = None, overwrite: bool = False) -> None:
        """`save`, under the name that Hugging Face's libraries have for it."""
        self.save(folder, card=card, overwrite=overwrite)

    @classmethod
    def from_pretrained(
        cls,
        name: str | Path,
        *,
        backend: str | None = None,
        neurons: Sequence[type[Neuron]] = (),
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: str | Path | None = None,
    ) -> Self:
        """`load` of a folder, or of a model on Hugging Face's hub.

        Args:
            name: a folder, or `owner/model`, which needs the package huggingface_hub.
            backend, neurons: see `load`.
            revision, token, cache_dir: branch, tag or commit; access; folder of downloads: see `huggingface_hub.snapshot_download`.

        Errors: those of `load`; `MissingDependencyError`, an `ImportError`, without huggingface_hub, and its own errors.
        """
        place = local_folder(name, revision=revision, token=token, cache_dir=cache_dir)
        return cls.load(place, backend=backend, neurons=neurons)

    def push_to_hub(
        self,
        repo_id: str,
        *,
        card: ModelCard | None = None,
        private: bool | None = None,
        token: str | bool | None = None,
        commit_message: str = "Upload a model of sparsesnn",
    ) -> str:
        """Uploads the files of `save` to Hugging Face's hub; returns the address of the commit.

        Args:
            repo_id: `owner/model`; it is created if it does not exist.
            card: see `save`.
            private: of a new repository; None: the owner's default.
            token: access; None: that of `hf auth login`.

        Errors: `MissingDependencyError`, an `ImportError`, without the package huggingface_hub, and its own errors.
        """
        api = hub("push_to_hub").HfApi(token=token)
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / repo_id.rpartition("/")[2]
            self.save(place, card=card)
            api.create_repo(repo_id, private=private, exist_ok=True)
            made = api.upload_folder(repo_id=repo_id, folder_path=place, commit_message=commit_message)
            return str(made.commit_url)
