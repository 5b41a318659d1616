"""Compression of stored bodies. A compressed body begins with a mark that identifies the method.

A short body is compressed by raw deflate with a dictionary of the field names that make up most of a
LangChain message, so even a single message gets shorter. A long body, such as a pack, is compressed by
Zstandard, which makes long bodies smaller and is quicker.

No MessagePack value begins with a mark. An uncompressed payload that is not MessagePack may: a reader then
recognises by the chunk's name, a digest of the uncompressed bytes, whether the body is compressed
(``chunks.Digester.read_stored``).
"""

from __future__ import annotations

import zlib

import zstandard

from perdure.model.ops import Put

MARK = b"\xc1\x01"
"""First bytes of a compressed body: a byte that MessagePack never uses, and the number of the dictionary."""

LONG_MARK = b"\xc1\x02"
"""First bytes of a long compressed body."""

SEALED = b"\xf5\x50"
"""First bytes of an encrypted body. It was compressed before its encryption, and is not compressed again."""

LEAST = 128
"""Bodies of fewer bytes are stored as they are."""

MOST = 4 << 20
"""Most bytes to which a stored body is expanded: every chunk is smaller, and a hostile row could otherwise
expand until the memory is full."""

_WINDOW = 15
_SMALL = 3 << 10
_LONG = 8 << 10
_LEVEL = 3

# Frozen: a change would make what is stored unreadable. Another dictionary gets another mark.
DICTIONARY = (
    b"\xa7version\xa4data\xa6base64\xa9mime_type\xa9image_url\xa3url\xa5index\xa9reasoning\xa8thinking\xa9signature"
    b"\xabstop_reason\xa8end_turn\xadstop_sequence\xc0\xa5usage\xbbcache_creation_input_tokens\x00"
    b"\xb7cache_read_input_tokens\x00\xa5model\xa7claude-\xa4msg_\xa8tool_use\xa5input"
    b"\xabtoken_usage\xb1completion_tokens\xadprompt_tokens\xb9completion_tokens_details\xc0"
    b"\xaemodel_provider\xa6openai\xaamodel_name\xa4gpt-\xb2system_fingerprint\xc0\xa2id\xa9chatcmpl-"
    b"\xacservice_tier\xa7default\xadfinish_reason\xaatool_calls\xa4stop\xa8logprobs\xc0"
    b"\xa9remaining_steps\xb3structured_response\xbblangchain_core.messages.remove\xadRemoveMessage"
    b"\x05\x94\xbelangchain_core.messages.system\xadSystemMessage\x86\xa7content\xda"
    b"\x05\x94\xbclangchain_core.messages.tool\xabToolMessage\x89\xa7content\xda\xb1additional_kwargs\x80"
    b"\xb1response_metadata\x80\xa4type\xa4tool\xa4name\xa2id\xd9$\xactool_call_id\xbdcall_\xa8artifact\xc0"
    b"\xa6status\xa7success\xb3model_validate_json"
    b"\xaatool_calls\x91\x84\xa4name\xa4args\x81\xa5query\xa2id\xbdcall_\xa4type\xa9tool_call"
    b"\xb2invalid_tool_calls\x90\xaeusage_metadata\x85\xacinput_tokens\xadoutput_tokens\xactotal_tokens"
    b"\xb3input_token_details\x82\xa5audio\x00\xaacache_read\x00\xb4output_token_details\x82\xa5audio\x00"
    b"\xa9reasoning\x00\xb3model_validate_json\xa4role\xa4user\xa9assistant\x82\xa4type\xa4text\xa4text"
    b"\x05\x94\xbdlangchain_core.messages.human\xacHumanMessage\x86\xa7content\xda"
    b"\xb1additional_kwargs\x80\xb1response_metadata\x80\xa4type\xa5human\xa4name\xc0\xa2id\xd9$-4"
    b"\xb3model_validate_json"
    b"\xb1additional_kwargs\x80\xb1response_metadata\x80\xa4type\xa2ai\xa4name\xc0\xa2id\xd9$-4"
    b"\xaatool_calls\x90\xb2invalid_tool_calls\x90\xaeusage_metadata\xc0\xb3model_validate_json"
    b"\xc8\x02\x05\x94\xbalangchain_core.messages.ai\xa9AIMessage\x89\xa7content\xda"
)


def compress_body(put: Put) -> bytes:
    """Return the body that a driver stores for an operation. Call it outside of event loops, which it would
    block."""
    body = put.body
    if put.kind.compressed and not body.startswith(SEALED):
        return compress(body)
    return body


def compress(body: bytes) -> bytes:
    """Return the form in which a body is stored: compressed, or unchanged if that is not longer."""
    size = len(body)
    if not LEAST <= size <= MOST:
        return body
    if size > _LONG:
        short = LONG_MARK + zstandard.ZstdCompressor(level=_LEVEL).compress(body)
    else:
        # For a small body a small window saves time, and makes the result only a few bytes longer.
        window = 12 if size <= _SMALL else _WINDOW
        deflate = zlib.compressobj(6, zlib.DEFLATED, -window, 8, zlib.Z_DEFAULT_STRATEGY, DICTIONARY)
        short = MARK + deflate.compress(body) + deflate.flush()
    if len(short) < size:
        return short
    return body


def decompress(stored: bytes) -> bytes | None:
    """Return the uncompressed body; ``None`` if the stored one is not compressed, is truncated, or would
    expand to more than ``MOST`` bytes."""
    if stored.startswith(LONG_MARK):
        return _expand_frame(stored[len(LONG_MARK) :])
    if not stored.startswith(MARK):
        return None
    inflate = zlib.decompressobj(-_WINDOW, DICTIONARY)
    try:
        body = inflate.decompress(stored[len(MARK) :], MOST)
    except zlib.error:
        return None
    if inflate.eof and not inflate.unused_data:
        return body
    return None


def _expand_frame(frame: bytes) -> bytes | None:
    try:
        if not 0 <= zstandard.frame_content_size(frame) <= MOST:
            return None
        inflate = zstandard.ZstdDecompressor(max_window_size=MOST)
        return inflate.decompress(frame, read_across_frames=False, allow_extra_data=False)
    except zstandard.ZstdError:
        return None
