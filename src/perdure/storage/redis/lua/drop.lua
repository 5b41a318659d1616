-- Removes a partition with its entries in the catalogue and the indexes, if every check holds: 0, or the
-- number of the first that failed.
-- KEYS: records, order, catalogue, index, index of what is due, mark. ARGV: partition, the prefix of records'
-- keys, then for each check head and name. A head is as that of a commit's operation.

local NONE, SOME, VERSION = 1, 2, 3

local function holds(head, name)
  local expect = head:byte(3)
  if expect == NONE then
    return redis.call('HEXISTS', KEYS[1], name) == 0
  end
  if expect == SOME then
    return redis.call('HEXISTS', KEYS[1], name) == 1
  end
  if expect == VERSION then
    local value = redis.call('HGET', KEYS[1], name)
    return value and value:sub(1, 8) == head:sub(8)
  end
  return true
end

local at = 3
while ARGV[at] do
  if not holds(ARGV[at], ARGV[at + 1]) then
    return (at - 1) / 2
  end
  at = at + 2
end
for _, number in pairs(INDEXED) do
  local kind = kind_of(number)
  local low = '[' .. kind.name .. ':'
  local names = redis.call('ZRANGEBYLEX', KEYS[2], low, '(' .. kind.name .. ';')
  sliced(names, function(first, last)
    local entries = {}
    for n, value in ipairs(redis.call('HMGET', KEYS[1], unpack(names, first, last))) do
      local entry = value and index_entry(kind, names[first + n - 1], value, ARGV[1])
      if entry then
        entries[#entries + 1] = entry
      end
    end
    if #entries > 0 then
      redis.call('ZREM', index_of(kind, KEYS[4], KEYS[5]), unpack(entries))
    end
  end)
end
redis.call('UNLINK', KEYS[1], KEYS[2])
redis.call('ZREM', KEYS[3], ARGV[1])
return 0
