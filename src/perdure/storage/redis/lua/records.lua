-- Functions that the scripts share. A record is packed as in perdure/storage/kv/keys.py. The kinds precede
-- this file: kind_of, by their numbers, and INDEXED, the numbers of those that have an index, by their names.
-- Names of records begin with their kind's and a colon; entries in order of a field with the kind's, an at
-- sign and the field's. Bodies are never unpacked.

local ABSENT = string.rep('\255', 4)

local function u32(number)
  return struct.pack('>I4', number)
end

-- Returns the indexed field of a record in the form of the index, or nil, and the position behind it.
local function indexed(kind, value)
  local at = kind.head + 1
  if not kind.index then
    return nil, at
  end
  if value:sub(at, at + 3) == ABSENT then
    return nil, at + 4
  end
  local size = struct.unpack('>I4', value:sub(at, at + 3))
  return value:sub(at + 4, at + 3 + size), at + 4 + size
end

-- Returns the position of the body.
local function body_at(kind, value)
  local _, at = indexed(kind, value)
  if kind.rest then
    at = at + 4 + struct.unpack('>I4', value:sub(at, at + 3))
  end
  return at
end

-- Returns the end of the packed value at `from`. The server's own reader of such values knows no bytes.
local function value_end(packed, from)
  local mark = packed:byte(from + 1)
  if mark >= 196 and mark <= 198 then
    local wide = 2 ^ (mark - 196)
    return from + 1 + wide + struct.unpack('>I' .. wide, packed:sub(from + 2, from + 1 + wide))
  end
  local to = cmsgpack.unpack_one(packed, from)
  return to == -1 and #packed or to
end

-- Returns the bytes of a field: the ordered ones first, then the indexed one, then the rest.
local function column(kind, value, place)
  if place < kind.ordered then
    local at = kind.head - 8 * (kind.ordered - place) + 1
    return value:sub(at, at + 7)
  end
  local _, at = indexed(kind, value)
  place = place - kind.ordered
  if kind.index then
    if place == 0 then
      return value:sub(kind.head + 1, at - 1)
    end
    place = place - 1
  end
  local size = struct.unpack('>I4', value:sub(at, at + 3))
  local rest = value:sub(at + 4, at + 3 + size)
  local from = 1 -- behind the array's own byte
  for _ = 1, place do
    from = value_end(rest, from)
  end
  return rest:sub(from + 1, value_end(rest, from))
end

-- Returns true if eight bytes encode a smaller number than eight others.
local function less(left, right)
  local a, b = struct.unpack('>I4', left:sub(1, 4)), struct.unpack('>I4', right:sub(1, 4))
  if a == b then
    a, b = struct.unpack('>I4', left:sub(5)), struct.unpack('>I4', right:sub(5))
  end
  return a < b
end

-- The index of a kind, of the keys of a bucket's indexes.
local function index_of(kind, shared, polled)
  return kind.polled and polled or shared
end

-- The entry of a record in the index of its bucket.
local function index_entry(kind, field, value, partition)
  local found = indexed(kind, value)
  return found and kind.name .. ':' .. found .. u32(#partition) .. partition .. field:sub(#kind.name + 2)
end

-- The entry that orders a record by a field; `split` is the size of its name up to the last part of its key.
local function order_entry(kind, place, field, value, split)
  local name = kind.name .. '@' .. kind.by[place] .. ':'
  local at = kind.head - 8 * (#kind.by - place + 1) + 1
  return name .. field:sub(#kind.name + 2, split) .. value:sub(at, at + 7) .. field:sub(split + 1)
end

-- Calls `act` with slices of a list that are short enough for one command.
local function sliced(list, act)
  for from = 1, #list, 2000 do
    act(from, math.min(from + 1999, #list))
  end
end

-- The kind of an entry of the index, the name of its record's partition, and the record, unless it was
-- removed or has another entry by now. `prefix` is that of all records' keys in the bucket.
local function indexed_record(entry, prefix)
  local colon = entry:find(':', 1, true)
  local number = INDEXED[entry:sub(1, colon - 1)]
  if not number then
    return nil
  end
  local kind = kind_of(number)
  local to = kind.index == 'integer' and colon + 8 or entry:find('\0\1', colon + 1, true) + 1
  local size = struct.unpack('>I4', entry:sub(to + 1, to + 4))
  local partition = entry:sub(to + 5, to + 4 + size)
  local key = entry:sub(to + 5 + size)
  local value = redis.call('HGET', prefix .. partition, kind.name .. ':' .. key)
  if not value or indexed(kind, value) ~= entry:sub(colon + 1, to) then
    return kind
  end
  return kind, partition, key, value
end
