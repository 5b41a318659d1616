-- Reads records and ranges of one partition, in one snapshot, as one string: for each record asked for by
-- name its size and bytes (the largest size: there is none), then for each range the number of its records,
-- and for each the size and bytes of its key and of itself.
-- KEYS: records, order, mark. ARGV: the number of names, the names, then for each range head, low, high. A
-- head is: kind, flags, limit (4 bytes, the largest number: none), split (4 bytes).

local BODIES, REVERSE, BY = 1, 2, 4
local ALL = 4294967295
local records, order = KEYS[1], KEYS[2]
local out = {}

local function flag(flags, bit)
  return math.floor(flags / bit) % 2 == 1
end

local function range(head, low, high)
  local number, flags = head:byte(1, 2)
  local kind = kind_of(number)
  local limit, split = struct.unpack('>I4I4', head:sub(3, 10))
  local command = flag(flags, REVERSE) and 'ZREVRANGEBYLEX' or 'ZRANGEBYLEX'
  local from, to = low, high
  if flag(flags, REVERSE) then
    from, to = high, low
  end
  local names
  if limit == ALL then
    names = redis.call(command, order, from, to)
  else
    names = redis.call(command, order, from, to, 'LIMIT', 0, limit)
  end
  if flag(flags, BY) then
    local skip = low:find(':', 1, true)
    for n, name in ipairs(names) do
      names[n] = kind.name .. ':' .. name:sub(skip, split) .. name:sub(split + 9)
    end
  end
  local place, count = #out + 1, 0
  out[place] = ''
  sliced(names, function(first, last)
    for n, value in ipairs(redis.call('HMGET', records, unpack(names, first, last))) do
      if value then
        if not flag(flags, BODIES) then
          value = value:sub(1, body_at(kind, value) - 1)
        end
        local name = names[first + n - 1]:sub(#kind.name + 2)
        local size = #out
        out[size + 1], out[size + 2] = u32(#name), name
        out[size + 3], out[size + 4] = u32(#value), value
        count = count + 1
      end
    end
  end)
  out[place] = u32(count)
end

local gets = tonumber(ARGV[1])
for from = 2, gets + 1, 2000 do
  local to = math.min(from + 1999, gets + 1)
  local found = redis.call('HMGET', records, unpack(ARGV, from, to))
  for n = 1, to - from + 1 do
    local value = found[n]
    if value then
      out[#out + 1] = u32(#value)
      out[#out + 1] = value
    else
      out[#out + 1] = ABSENT
    end
  end
end
for at = gets + 2, #ARGV, 3 do
  range(ARGV[at], ARGV[at + 1], ARGV[at + 2])
end
return table.concat(out)
