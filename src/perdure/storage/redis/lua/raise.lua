-- Raises the version of the layout record, also while other clients do the same, and never lowers it.
-- KEYS: the record. ARGV: the version.

local version, buckets = (redis.call('GET', KEYS[1]) or ''):match('^(%d+)%s+(%d+)$')
if version and tonumber(version) < tonumber(ARGV[1]) then
  redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. buckets)
end
return 0
