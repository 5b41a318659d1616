-- Raises the version of the layout record, whoever else does so at the same moment, and never lowers it.
-- KEYS: the record. ARGV: the version.

local version, buckets = (redis.call('GET', KEYS[1]) or ''):match('^(%d+)%s+(%d+)$')
if version and tonumber(version) < tonumber(ARGV[1]) then
  redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. buckets)
end
return 0
