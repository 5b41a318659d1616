"""Providers of the keys that encrypt a database: a file, AWS KMS, or one of your own.

>>> async with perdure.connect(url, encryption_key=AwsKms("alias/perdure")) as db:
...     ...

``perdure.admin.rotate_keys`` rotates.
"""

from perdure.storage.aws_kms import AwsKms
from perdure.storage.key_providers import EncryptionKey, FileKeys, KeyProvider

__all__ = ["AwsKms", "EncryptionKey", "FileKeys", "KeyProvider"]
