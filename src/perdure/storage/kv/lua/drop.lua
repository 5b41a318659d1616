-- Removes a partition with its entries in the catalogue and the indexes.
-- KEYS: records, order, passing order, catalogue, index, index of what is due. ARGV: partition.

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
      redis.call('ZREM', index_of(kind, KEYS[5], KEYS[6]), unpack(entries))
    end
  end)
end
redis.call('UNLINK', KEYS[1], KEYS[2], KEYS[3])
redis.call('ZREM', KEYS[4], ARGV[1])
return 0
