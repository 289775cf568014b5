-- A token bucket that can be leased from: one key, one call, exact integers.
-- bucket.go is the same rule in Go and a test holds the two equal, state included.
--
-- KEYS[1]  the bucket. Absent (or of an unknown form) = full, nothing held.
-- ARGV     R P B version      the caller's policy: units per microsecond, units per
--                             token, burst in tokens; version orders policies
--          E                  length of an epoch (microseconds)
--          need extra spare   tokens to admit now; to lease; to lease if there are plenty
--          epoch rel0 rel1    no longer held, of those leased in that epoch, and the one before
--          ret debt           tokens to give back; tokens spent while Redis was away
--          hold               1: what is granted counts as held as well
--          parts              extra is at most one of so many parts of what is left
-- Returns  granted (of need), leased, level (units), P in force, microseconds to the
--          next token, epoch, microseconds for which what is leased now counts, tokens
--          held by all, version in force, time (microseconds)
--
-- Invariant: level + (held + prev) * P <= B * P. What nodes hold counts in the
-- bucket, so that what is admitted when it is *spent* keeps the promise. Below 0,
-- level is what was spent elsewhere and the bucket did not have.
-- Tokens leased in epoch k count until the end of epoch k + 1; whoever holds
-- them stops spending before that.
--
-- Time is Redis' own, never a caller's: a late packet or a fast clock would
-- refill twice. All numbers are integers below 2^53 (burst * P <= 2^52), so
-- doubles hold them exactly. They travel through struct.pack and redis.call,
-- never through tostring or '..', which keep 14 digits of a 16-digit time.

local FORM, SIZE = '<dddddddddd', 80 -- level ts lag held prev used version R P B
local SLACK = 1000000               -- microseconds a clock may lag before it counts as stepped back
local LEAST = 16                    -- smaller bursts are not leased from

local n = {}
for i = 1, #ARGV do n[i] = tonumber(ARGV[i]) end
local R, P, B, version, E = n[1], n[2], n[3], n[4], n[5]
local need, extra, spare = n[6], n[7], n[8]
local from, rel0, rel1, ret, debt, hold, parts = n[9], n[10], n[11], n[12], n[13], n[14], n[15]

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

-- Epochs are counted on ts + lag, which does not step back with the clock.
local level, ts, lag, held, prev, used = B * P, now, 0, 0, 0, -1
local stepped, changed = false, false
local raw = redis.call('GET', KEYS[1])
local known = raw and #raw == SIZE
local same = true
if known then
  local v, r, p, b
  level, ts, lag, held, prev, used, v, r, p, b = struct.unpack(FORM, raw)

  -- Time that has passed counts under the policy it passed under, and under
  -- what was held meanwhile. A clock that stepped back starts the count anew
  -- and grants nothing this once. (A product too large for a double to hold
  -- exactly is above the cap all the same.)
  if now >= ts then
    while held + prev > 0 do
      local edge = ts + E - math.fmod(ts + lag, E)
      if edge > now then break end
      level = math.max(level, math.min(math.max(0, b - held - prev) * p, level + (edge - ts) * r))
      ts = edge
      prev, held = held, 0
    end
    level = math.max(level, math.min(math.max(0, b - held - prev) * p, level + (now - ts) * r))
    ts = now
  elseif ts - now > SLACK then
    lag = lag + ts - now
    ts = now
    stepped, changed = true, true
  end

  -- An older caller may not have heard of the change yet. What is not newer
  -- stays out until nobody has gone by the policy in force for an epoch: nodes
  -- that disagree cannot pull the bucket to and fro, and versions that begin
  -- anew, as those of a restored database do, are not ignored for ever.
  same = R == r and P == p and B == b
  local epoch = (ts + lag - math.fmod(ts + lag, E)) / E
  if version > v or (not same and epoch - used > 1) then
    if not same then
      if level < 0 then
        level = -share(-level, B * P, b * p) - 1
      else
        level = share(level, B * P, b * p)
      end
      level = math.min(level, math.max(0, B - held - prev) * P)
    end
    same, changed = true, true
  else
    version, R, P, B = v, r, p, b
  end
end

local epoch = (ts + lag - math.fmod(ts + lag, E)) / E
local lasts = (epoch + 2) * E - ts - lag
if same and used ~= epoch then
  used = epoch
  changed = changed or known
end

if from == epoch then
  held = math.max(0, held - rel0)
  prev = math.max(0, prev - rel1)
elseif from == epoch - 1 then
  prev = math.max(0, prev - rel0)
end
local cap = math.max(0, B - held - prev) * P
level = math.max(level, math.min(cap, level + ret * P))
level = math.max(math.min(level, -math.floor(B / 4) * P), level - debt * P)

local granted, leased = 0, 0
if not stepped then
  local have = math.max(0, math.floor(level / P))
  granted = math.min(need, have)
  if granted == need and B >= LEAST then
    leased = math.max(0, math.min(extra, math.floor((have - granted) / parts), math.floor(B / 4) - held - prev))
    if 2 * (have - granted - leased) >= B then
      local room = math.floor(B / 8) - held - prev - leased
      leased = leased + math.max(0, math.min(spare, math.ceil(room / 2)))
    end
  end
end
level = level - (granted + leased) * P
held = held + leased + hold * granted

local wait = 0
if level < P then
  wait = math.ceil((P - level) / R)
end

-- A refused call stores nothing: refilling later comes to the same level, and a
-- flood of refusals costs no replication. Once full and with nothing held, a
-- bucket is as good as absent; the extra second keeps its policy version over jitter.
if changed or granted + leased + rel0 + rel1 + ret + debt > 0 then
  local last = math.ceil((B * P - level) / R)
  if held + prev > 0 then
    last = math.max(last, lasts)
  end
  redis.call('SET', KEYS[1], struct.pack(FORM, level, ts, lag, held, prev, used, version, R, P, B),
    'PX', math.ceil(last / 1000) + 1000)
end

return { granted, leased, level, P, wait, epoch, lasts, held + prev, version, now }
