-- Raises the version of the layout record or of a bucket's mark, also while other clients do the same, and
-- never lowers it. What stands behind the version stays.
-- KEYS: the record or the mark. ARGV: the version, and what stands for one that is absent: '0', or nothing for
-- a record that is not to be created.

local version, more = (redis.call('GET', KEYS[1]) or ARGV[2]):match('^(%d+)(.*)$')
if version and tonumber(version) < tonumber(ARGV[1]) then
  redis.call('SET', KEYS[1], ARGV[1] .. more)
end
return 0
