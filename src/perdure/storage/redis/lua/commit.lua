-- Checks the expectations of all operations, then writes them: 0, or the number of the first that failed.
-- KEYS: records, order, catalogue, index, index of what is due, mark. ARGV: partition, 1 if it belongs into the
-- catalogue, milliseconds to live or 0, the prefix of records' keys, then for each operation head, name, and
-- for a put the record, for a delete the fields that must be unchanged.
-- A head is: operation, kind, expectation, split (4 bytes), and the version that is expected, if one is.

local PUT, DELETE = 1, 2
local ANY, NONE, SOME = 0, 1, 2
local records, order = KEYS[1], KEYS[2]
local partition, listed, life = ARGV[1], ARGV[2] == '1', tonumber(ARGV[3])
local expires = life > 0
local existed = redis.call('EXISTS', records) == 1
local ops, before = {}, {}

local function unchanged(kind, wanted, value)
  local at = 1
  while at <= #wanted do
    local place, size = struct.unpack('>I4I4', wanted:sub(at, at + 7))
    if column(kind, value, place) ~= wanted:sub(at + 8, at + 7 + size) then
      return false
    end
    at = at + 8 + size
  end
  return true
end

local function holds(n, op)
  if op.wanted and op.wanted ~= '' then
    before[n] = redis.call('HGET', records, op.field)
    if not before[n] or not unchanged(op.kind, op.wanted, before[n]) then
      return false
    end
  end
  if op.expect == ANY then
    return true
  end
  if op.expect == NONE then
    return redis.call('HEXISTS', records, op.field) == 0
  end
  if op.expect == SOME then
    return redis.call('HEXISTS', records, op.field) == 1
  end
  before[n] = before[n] or redis.call('HGET', records, op.field)
  return before[n] and before[n]:sub(1, 8) == op.version
end

local at, count, has_puts = 5, 0, false
while ARGV[at] do
  local head = ARGV[at]
  local code, kind, expect = head:byte(1, 3)
  local op = { code = code, kind = kind_of(kind), expect = expect, field = ARGV[at + 1], more = ARGV[at + 2] }
  op.split = struct.unpack('>I4', head:sub(4, 7))
  op.version = head:sub(8)
  if code == DELETE then
    op.wanted = op.more
  end
  count = count + 1
  if not holds(count, op) then
    return count
  end
  if expect == NONE then
    before[count] = false
  end
  ops[count] = op
  has_puts = has_puts or code == PUT
  at = at + (code == PUT and 3 or code == DELETE and 3 or 2)
end

local function unlist(kind, op, value)
  for place = 1, #kind.by do
    redis.call('ZREM', order, order_entry(kind, place, op.field, value, op.split))
  end
  local entry = index_entry(kind, op.field, value, partition)
  if entry then
    redis.call('ZREM', index_of(kind, KEYS[4], KEYS[5]), entry)
  end
end

-- The record that an operation changes, nil or false if there is none.
local function stored(op, n)
  if before[n] == nil then
    return redis.call('HGET', records, op.field)
  end
  return before[n]
end

-- Entries that were added to the index.
local added = 0

local function put(kind, op, n)
  local value = op.more
  if kind.grows then
    local old = stored(op, n)
    if old and less(value:sub(1, 8), old:sub(1, 8)) then
      value = old:sub(1, 8) .. value:sub(9)
    end
  end
  if kind.index or #kind.by > 0 then
    local old = stored(op, n)
    if old then
      unlist(kind, op, old)
    end
    for place = 1, #kind.by do
      redis.call('ZADD', order, 0, order_entry(kind, place, op.field, value, op.split))
    end
    local entry = index_entry(kind, op.field, value, partition)
    if entry then
      redis.call('ZADD', index_of(kind, KEYS[4], KEYS[5]), 0, entry)
      added = added + (kind.polled and 0 or 1)
    end
  end
  if redis.call('HSET', records, op.field, value) == 1 then
    redis.call('ZADD', order, 0, op.field)
  end
end

local function delete(kind, op, n)
  local old = nil
  if kind.index or #kind.by > 0 then
    old = stored(op, n)
  end
  if redis.call('HDEL', records, op.field) == 0 then
    return
  end
  if old then
    unlist(kind, op, old)
  end
  redis.call('ZREM', order, op.field)
end

-- Returns true if a queue of the partition will be due after the operations.
local function is_due()
  local written = {}
  for _, op in ipairs(ops) do
    if op.kind.polled and (op.code == PUT or op.code == DELETE) then
      written[op.field] = true
      if op.code == PUT and indexed(op.kind, op.more) then
        return true
      end
    end
  end
  for _, number in pairs(existed and INDEXED or {}) do
    local kind = kind_of(number)
    if kind.polled then
      local names = redis.call('ZRANGEBYLEX', order, '[' .. kind.name .. ':', '(' .. kind.name .. ';')
      for _, name in ipairs(names) do
        local value = not written[name] and redis.call('HGET', records, name)
        if value and indexed(kind, value) then
          return true
        end
      end
    end
  end
  return false
end

-- A thread does not expire while a queue in it is due: no worker would find it any more.
if life > 0 and is_due() then
  life = 0
end

-- Before anything is written, so that a user without the right is refused with nothing done.
if life == 0 and existed and has_puts and redis.call('PTTL', records) >= 0 then
  redis.call('PERSIST', records)
  redis.call('PERSIST', order)
end

local wrote, removed, idle = false, false, false
for n, op in ipairs(ops) do
  if op.code == PUT then
    put(op.kind, op, n)
    wrote = true
  elseif op.code == DELETE then
    delete(op.kind, op, n)
    removed = true
    idle = idle or op.kind.polled
  end
end

if wrote and listed and not existed then
  redis.call('ZADD', KEYS[3], 0, partition)
end
if removed and not wrote and listed and redis.call('EXISTS', records) == 0 then
  redis.call('ZREM', KEYS[3], partition)
end
if life > 0 and (wrote or idle) then
  redis.call('PEXPIRE', records, life)
  redis.call('PEXPIRE', order, life)
end
-- Threads that ended leave entries behind: a commit that adds some takes more of those away, up to a number
-- that blocks the server for little time.
if expires and wrote then
  if not existed then
    for _, entry in ipairs(redis.call('ZRANDMEMBER', KEYS[3], 3)) do
      if redis.call('EXISTS', ARGV[4] .. entry) == 0 then
        redis.call('ZREM', KEYS[3], entry)
      end
    end
  end
  local sample = math.max(existed and 0 or 9, math.min(2 * added, 200))
  for _, entry in ipairs(sample > 0 and redis.call('ZRANDMEMBER', KEYS[4], sample) or {}) do
    local kind, found = indexed_record(entry, ARGV[4])
    if kind and not found then
      redis.call('ZREM', KEYS[4], entry)
    end
  end
end
return 0
