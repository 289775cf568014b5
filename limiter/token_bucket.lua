-- A token bucket that can be leased from: one key, one call, exact integers.
-- lease/leasetest/bucket.go is the same rule in Go, with the reasons; a test holds
-- the two equal, state included.
--
-- KEYS[1]  the bucket. Absent = full, nothing held. So is a value of another form, and
--          a state outside its invariant: it was damaged, and might refuse for ever.
-- ARGV     rate burst version     the caller's policy; a rate is micro-tokens a second,
--                                 0 = a quota, which nothing refills
--          need hold extra        tokens to admit now; 1: they count as held; tokens to lease
--          arrived entitled       requests since the last report; thousandths of a
--                                 request that had no token yet
--          epoch rel0 rel1        no longer held, of those leased in that epoch, and the one before
--          ret debt               tokens to give back; tokens spent without Redis
--          nodes missing node     of the fleet; those that may be cut off; the caller
--          life                   of a quota: microseconds for which it must be stored
-- Returns  granted (of need), leased, level (micro-tokens), microseconds to the next
--          token, epoch, microseconds for which what is leased now counts, tokens held
--          by all, demand, 1 if the caller owns the bucket
--
-- Invariant: level + withheld + (held + prev) * TOKEN <= burst * TOKEN.
-- Time is Redis' own, never a caller's: a late packet or a fast clock would refill
-- twice. All numbers are integers below 2^53, which doubles hold exactly. They
-- travel through struct.pack and redis.call, never through tostring or '..', which
-- keep 14 digits of a 16-digit time.

local FORM, SIZE = '<ddddddddddddd', 104
local TOKEN, EPOCH, SLACK = 1000000, 10000000, 1000000
local LEAST = 16 -- smaller bursts are not leased from
local OWNER_LIFE, MISSING_AFTER, MEMBER_LIFE = 60000000, 1850000, 60000000
local DEMAND_SPAN, FAIR, SCARCE = 6000000, 1.03125, 4
local MAX_UNITS, MAX_TOKENS = 2 ^ 52, 4503599627
local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max

local n = {}
for i = 1, #ARGV do n[i] = tonumber(ARGV[i]) end
local R, B, version, need, hold, extra = n[1], n[2], n[3], n[4], n[5], n[6]
local arrived, entitled, from, rel0, rel1 = n[7], n[8], n[9], n[10], n[11]
local ret, debt, nodes, missing, node, life = n[12], n[13], max(1, n[14]), n[15], n[16], n[17]

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])

local level, ts, lag, held, prev, used, demand, withheld, owner, seen, v, r, b
local raw = redis.pcall('GET', KEYS[1]) -- a table: a value of another type
local known = type(raw) == 'string' and #raw == SIZE
if known then
  level, ts, lag, held, prev, used, demand, withheld, owner, seen, v, r, b = struct.unpack(FORM, raw)
end

local function time_for(units)
  if units <= 0 then return 0 end
  return min(MAX_UNITS, ceil(units * 1000000 / r))
end
local function cap() return max(0, b - held - prev) * TOKEN end
local function lowest()
  if r == 0 then return -MAX_UNITS end
  return -floor(b / 4) * TOKEN
end
local function whole(x) return x % 1 == 0 and x >= 0 and x <= 2 ^ 53 end -- false for NaN
known = known and whole(math.abs(level)) and whole(ts) and whole(lag) and whole(held) and whole(prev) and whole(used + 1)
  and whole(demand) and whole(withheld) and whole(owner) and whole(seen) and whole(v) and whole(r) and whole(b)
  and r <= MAX_UNITS and b >= 1 and b <= MAX_TOKENS and ts + lag <= MAX_UNITS and used * EPOCH <= ts + lag and seen <= ts + lag
  and level >= lowest() and level + withheld <= cap()
if not known then
  level, ts, lag, held, prev, used, demand = B * TOKEN, now, 0, 0, 0, -1, 0
  withheld, owner, seen, v, r, b = 0, 0, 0, version, R, B
end

-- Who is missing, and how much of the refill is withheld for them.
local gone = missing
if b < nodes then
  gone = nodes
  if missing == 0 or owner == 0 or owner == node or now - seen <= MISSING_AFTER then gone = 0 end
end
local most = floor(b * TOKEN * gone / nodes)
local function grow(dt)
  local earned = min(b * TOKEN, floor(dt * r / 1000000))
  local part = floor(earned * gone / nodes)
  level = max(level, min(cap() - withheld, level + earned - part))
  withheld = max(withheld, min(withheld + part, most, cap() - level))
end

local stepped, changed = false, false
if now >= ts then
  demand = floor(demand * max(0, DEMAND_SPAN - (now - ts)) / DEMAND_SPAN)
  while held + prev > 0 do
    local edge = ts + EPOCH - math.fmod(ts + lag, EPOCH)
    if edge > now then break end
    grow(edge - ts)
    ts, prev, held = edge, held, 0
  end
  grow(now - ts)
  ts = now
elseif ts - now > SLACK then
  lag = lag + ts - now
  ts = now
  stepped, changed = true, true
end
if withheld > most then
  level = level + withheld - most
  withheld = most
end

-- The newer policy, or one that no node has disagreed with for an epoch.
local epoch = floor((ts + lag) / EPOCH)
if version > v or (not (R == r and B == b) and epoch - used > 1) then
  if r == 0 and R == 0 then level = level + (B - b) * TOKEN end
  v, r, b = version, R, B
  level = max(min(level, cap()), lowest())
  withheld = max(0, min(withheld, cap() - level))
  changed = true
end
if R == r and B == b and used ~= epoch then
  used = epoch
  changed = changed or known
end

if b < nodes and node ~= 0 and not (owner == node and ts - seen <= MISSING_AFTER / 2)
  and not (owner ~= 0 and owner ~= node and (missing > 0 or ts - seen <= OWNER_LIFE)) then
  owner, seen, changed = node, ts, true
end

demand = demand + min(arrived, 1000000000) * 1000
if from == epoch then
  held = max(0, held - rel0)
  prev = max(0, prev - rel1)
elseif from == epoch - 1 then
  prev = max(0, prev - rel0)
end
local most_tokens = b
if r == 0 then most_tokens = MAX_TOKENS end
level = max(level, min(cap() - withheld, level + min(ret, most_tokens) * TOKEN))
local owed = min(debt, most_tokens) * TOKEN
local paid = min(owed, withheld)
withheld = withheld - paid
level = max(min(level, lowest()), level - owed + paid)

local granted, leased = 0, 0
if not stepped then
  local have = floor(max(0, level) / TOKEN)
  local capacity = r * DEMAND_SPAN / 1000000000
  local scarce = have * SCARCE < b and (have + nodes) * 1000 < capacity
    and demand > max(capacity * 9 / 8 + b * 500, capacity / 2 + b * 1000)
  local share = have
  if scarce and nodes > 1 and b >= LEAST then
    share = min(have, floor(entitled * capacity * FAIR / demand / 1000))
  end
  granted = min(need, share)
  if granted == need and b >= LEAST then
    local bound = floor((have + held + prev) / max(8, 2 * nodes + 1))
    if r == 0 then
      bound = floor(have / max(8, 3 * nodes))
    elseif scarce then
      bound = share
    elseif b < 3 * nodes then
      bound = 0
    elseif 2 * have < b then
      bound = floor(have / (3 * nodes))
    end
    leased = min(extra, bound, share - granted)
    if r > 0 then leased = min(leased, floor(b / 2) - held - prev) end
    leased = max(0, leased)
  end
end
level = level - (granted + leased) * TOKEN
if r > 0 then held = held + leased + hold * granted end

local wait = 0
if level < TOKEN then wait = time_for(TOKEN - level) end

-- A refused request stores nothing: refilling later comes to the same level, and a
-- flood of refusals costs no replication. Once full, with nothing held or
-- withheld, a bucket is as good as absent; the extra second keeps its policy
-- version over jitter. A quota is stored for its life.
local lasts = (epoch + 2) * EPOCH - ts - lag
if changed or b >= LEAST and arrived > 0 or granted + leased + rel0 + rel1 + ret + debt > 0 then
  local last = time_for(b * TOKEN - level)
  if held + prev > 0 then last = max(last, lasts) end
  if owner ~= 0 or withheld > 0 then last = max(last, MEMBER_LIFE) end
  if r == 0 then last = life end
  redis.call('SET', KEYS[1], struct.pack(FORM, level, ts, lag, held, prev, used, demand, withheld, owner, seen, v, r, b),
    'PX', ceil(last / 1000) + 1000)
end

if r == 0 then epoch, lasts = 0, MAX_UNITS end
local owns = 0
if owner == node and node ~= 0 then owns = 1 end
return { granted, leased, level, wait, epoch, lasts, held + prev, demand, owns }
