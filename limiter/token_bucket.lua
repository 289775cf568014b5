-- A token bucket: one key, one call, exact integers. bucket.go is the same rule
-- in Go and a test holds the two equal, state included.
--
-- KEYS[1]  the bucket. Absent (or of an unknown form) = a full bucket.
-- ARGV     R P B version   the caller's policy: units per microsecond, units per
--                          token, burst in tokens; version orders policies
--          need            tokens to take: as many as there are
--          ret             tokens to give back, never above the burst
--          debt            tokens spent elsewhere while Redis was away
-- Returns  granted, level (units), whole tokens left, microseconds to the next
--          token, microseconds to full, version in force, time (microseconds)
--
-- Time is Redis' own, never a caller's: a late packet or a fast clock would
-- refill twice. All numbers are integers below 2^53 (burst * P <= 2^52), so
-- doubles hold them exactly. They travel through struct.pack and redis.call,
-- never through tostring or '..', which keep 14 digits of a 16-digit time.

local FORM, SIZE = '<dddddd', 48 -- level ts version R P B
local SLACK = 1000000            -- microseconds a clock may lag before it counts as stepped back

local R, P, B = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local version = tonumber(ARGV[4])
local need, ret, debt = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])

-- share returns floor(a * b / c) for 0 <= a <= c <= 2^52 and b <= 2^52. The
-- product needs 104 bits, so it is divided while it is built, bit by bit of b
-- from the top; every intermediate stays below 2^53.
local function share(a, b, c)
  local quotient, rest = 0, 0
  for bit = 52, 0, -1 do
    quotient = quotient * 2
    rest = rest * 2
    if rest >= c then
      rest = rest - c
      quotient = quotient + 1
    end
    local power = 2 ^ bit
    if b >= power then
      b = b - power
      rest = rest + a
      if rest >= c then
        rest = rest - c
        quotient = quotient + 1
      end
    end
  end
  return quotient
end

local level, ts = B * P, now
local stepped, rescaled = false, false
local raw = redis.call('GET', KEYS[1])
if raw and #raw == SIZE then
  local v, r, p, b
  level, ts, v, r, p, b = struct.unpack(FORM, raw)

  -- Time that has passed counts under the policy it passed under. A clock that
  -- stepped back starts the count anew and grants nothing this once. (A product
  -- too large for a double to hold exactly is above the cap all the same.)
  if now >= ts then
    level = math.min(b * p, level + (now - ts) * r)
    ts = now
  elseif ts - now > SLACK then
    ts = now
    stepped = true
  end

  if version < v then
    version, R, P, B = v, r, p, b -- the caller has not heard of the change yet
  elseif version > v or R ~= r or P ~= p or B ~= b then
    level = share(level, B * P, b * p)
    rescaled = true
  end
end

local cap = B * P
level = math.max(level, math.min(cap, level + ret * P))
level = math.max(0, level - debt * P)

local granted = 0
if not stepped then
  granted = math.min(need, math.floor(level / P))
end
level = level - granted * P

local wait = 0
if level < P then
  wait = math.ceil((P - level) / R)
end
local full = math.ceil((cap - level) / R)

-- A refused call stores nothing: refilling later comes to the same level, and a
-- flood of refusals costs no replication. Once full, a bucket is as good as
-- absent; the extra second keeps its policy version over jitter.
if stepped or rescaled or granted > 0 or ret > 0 or debt > 0 then
  redis.call('SET', KEYS[1], struct.pack(FORM, level, ts, version, R, P, B),
    'PX', math.ceil(full / 1000) + 1000)
end

return { granted, level, math.floor(level / P), wait, full, version, now }
