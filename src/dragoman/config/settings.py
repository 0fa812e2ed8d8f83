"""What every group of settings is: frozen, strict, and without room for unknown keys or numbers beyond reason."""

from pydantic import BaseModel, ConfigDict, field_validator
from pydantic_core import PydanticCustomError

LARGEST = 2**63 - 1


class Settings(BaseModel):
    """A frozen group of settings that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())

    @field_validator("*")
    @classmethod
    def _within_reason(cls, value: object) -> object:
        if isinstance(value, int) and value > LARGEST:
            raise PydanticCustomError("too_large", "input should be less than 2^63")
        return value
