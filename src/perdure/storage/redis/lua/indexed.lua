-- Finds records by their indexed field: partition, key and record without its body, in turn, of at most
-- `limit` records. Entries whose record was removed are deleted.
-- KEYS: index, mark. ARGV: low, high, limit, the prefix of the wanted partitions, the prefix of records' keys.

local low, limit, out = ARGV[1], tonumber(ARGV[3]), {}
local page = math.min(math.max(limit, 16), 1000)
while #out < 3 * limit do
  local entries = redis.call('ZRANGEBYLEX', KEYS[1], low, ARGV[2], 'LIMIT', 0, page)
  for _, entry in ipairs(entries) do
    if #out == 3 * limit then
      break
    end
    local kind, partition, key, value = indexed_record(entry, ARGV[5])
    if not value then
      redis.call('ZREM', KEYS[1], entry)
    elseif partition:sub(1, #ARGV[4]) == ARGV[4] then
      out[#out + 1] = partition
      out[#out + 1] = key
      out[#out + 1] = value:sub(1, body_at(kind, value) - 1)
    end
  end
  if #entries < page then
    break
  end
  low = '(' .. entries[#entries]
end
return out
