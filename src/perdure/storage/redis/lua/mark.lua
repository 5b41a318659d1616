-- Refuses a bucket whose mark is of a later layout. A migration writes the marks, so that processes of earlier
-- releases that still have the database open neither read its records nor write any. The mark is the last key
-- of every script on records.

local mark = redis.call('GET', KEYS[#KEYS])
if mark and tonumber(mark) > LAYOUT then
  return redis.error_reply('MIGRATED to layout ' .. mark)
end

