-- Reads a page of a bucket's catalogue: 1 or 0 for more entries behind it, the last entry that was examined,
-- then the entries. Entries of removed partitions are deleted.
-- KEYS: catalogue, mark. ARGV: low, high, limit, the prefix of records' keys.

local entries = redis.call('ZRANGEBYLEX', KEYS[1], ARGV[1], ARGV[2], 'LIMIT', 0, ARGV[3])
local out = { #entries == tonumber(ARGV[3]) and 1 or 0, entries[#entries] or '' }
for _, entry in ipairs(entries) do
  if redis.call('EXISTS', ARGV[4] .. entry) == 1 then
    out[#out + 1] = entry
  else
    redis.call('ZREM', KEYS[1], entry)
  end
end
return out
