-- A token bucket that can be leased from: one key, one call, exact integers.
--
-- KEYS[1]  the bucket. Absent = full, nothing held. So is a value of another form, and
--          a state outside its invariant: it was damaged, and might refuse for ever.
-- ARGV[1]  numbers, packed as the state is:
--          rate burst version     the caller's policy; a rate is micro-tokens a second
--          need hold extra        tokens to admit now; 1: they count as held; tokens to lease
--          arrived fair           requests since the last report; 1: extra is the fair share
--          slice released released_before   no longer held, of that slice and the one before
--          returned debt          tokens to give back; tokens spent without Redis
--          nodes silent           of the fleet; the share that silent ones may be using, in millionths
--          latest                 0, or the time after which nobody waits for the answer
-- Returns  granted (of need), leased, level (micro-tokens), microseconds to the next
--          token, slice, microseconds for which what is leased now counts, tokens held
--          by all, demand
--
-- The state, in the order in which it is stored:
--   level           micro-tokens at refilled_at; below 0 = more were spent than it had
--   refilled_at     microseconds: up to here the bucket has been refilled
--   clock_lag       sum of all steps back of the clock; refilled_at + clock_lag counts slices
--   held_now        tokens leased in the slice of refilled_at and not yet reported spent
--   held_before     the same of the slice before; tokens of older slices no longer count
--   policy_used_in  slice in which a node last used the policy in force
--   demand          requests of the last DEMAND_SPAN, decaying, in thousandths
--   withheld        micro-tokens of the silent nodes, which may be spending them without Redis
--   stored_version stored_rate stored_burst   the policy in force
--
-- Invariants: level + withheld + (held_now + held_before) * TOKEN <= burst * TOKEN, unless the
-- burst was made smaller than what is held: then level <= 0. level >= -burst * TOKEN / 4. No
-- microsecond refills twice.
-- Time is Redis' own, never a caller's: a late packet or a fast clock would refill
-- twice. All numbers are integers below 2^53, which doubles hold exactly. They
-- travel through struct.pack and redis.call, never through tostring or '..', which
-- keep 14 digits of a 16-digit time.
--
-- The order of the steps matters. The refill comes before the new policy, because the old rate
-- was in force until now. The release comes before the tokens given back, because it makes room
-- for them below the burst. The debit comes before the grant: else tokens would be spent twice.

local FORM, SIZE = '<ddddddddddd', 88
local TOKEN, SLICE, SLACK = 1000000, 10000000, 1000000 -- micro-tokens; microseconds; a smaller step back is waited out
local LEAST = 16 -- smaller bursts are not leased from
local MEMBER_LIFE, DEMAND_SPAN = 60000000, 6000000 -- microseconds; see withheld and demand
local MAX_UNITS, MAX_TOKENS = 2 ^ 52, 4503599627 -- the largest rate, in micro-tokens a second, and burst
local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max

local rate, burst, version, need, hold, extra, arrived, fair, reported_slice,
  released, released_before, returned, debt, nodes, silent, latest = struct.unpack('<dddddddddddddddd', ARGV[1])
nodes = max(1, nodes)

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])

local level, refilled_at, clock_lag, held_now, held_before, policy_used_in, demand
local withheld, stored_version, stored_rate, stored_burst
local stored = redis.pcall('GET', KEYS[1]) -- a table: a value of another type
local read = type(stored) == 'string' and #stored == SIZE
if read then
  level, refilled_at, clock_lag, held_now, held_before, policy_used_in, demand,
    withheld, stored_version, stored_rate, stored_burst = struct.unpack(FORM, stored)
end

local function time_for(units)
  if units <= 0 then return 0 end
  return min(MAX_UNITS, ceil(units * 1000000 / stored_rate))
end
local function cap() return max(0, stored_burst - held_now - held_before) * TOKEN end
local function lowest() return 0 - floor(stored_burst / 4) * TOKEN end -- not -0
local function whole(number) return number % 1 == 0 and number >= 0 and number <= 2 ^ 53 end -- false for NaN
local ticks = read and refilled_at + clock_lag
local known = read and whole(math.abs(level)) and whole(refilled_at) and whole(clock_lag) and whole(held_now) and whole(held_before)
  and whole(policy_used_in + 1) and whole(demand) and whole(withheld)
  and whole(stored_version) and whole(stored_rate) and whole(stored_burst)
  and stored_rate <= MAX_UNITS and stored_burst >= 1 and stored_burst <= MAX_TOKENS
  and ticks <= MAX_UNITS and policy_used_in * SLICE <= ticks
  and level >= lowest() and level + withheld <= cap()
if not known then
  level, refilled_at, clock_lag, held_now, held_before, policy_used_in, demand = burst * TOKEN, now, 0, 0, 0, -1, 0
  withheld, stored_version, stored_rate, stored_burst = 0, version, rate, burst
end

-- Of the refill, the share of the silent nodes is withheld: they may be spending it without Redis.
local max_withheld = stored_burst * silent -- of stored_burst * TOKEN
local function grow(passed)
  local earned = min(stored_burst * TOKEN - min(level, 0), floor(passed * stored_rate / 1000000))
  local withheld_part = floor(earned * silent / TOKEN)
  level = max(level, min(cap() - withheld, level + earned - withheld_part))
  withheld = max(withheld, min(withheld + withheld_part, max_withheld, cap() - level))
end

-- Refill slice by slice: at the end of a slice held tokens age out, and the bucket has more room.
-- If the clock was set back, this call gets no tokens.
local stepped, changed = false, false
if now >= refilled_at then
  demand = floor(demand * max(0, DEMAND_SPAN - (now - refilled_at)) / DEMAND_SPAN)
  while held_now + held_before > 0 do
    local edge = refilled_at + SLICE - math.fmod(refilled_at + clock_lag, SLICE)
    if edge > now then break end
    grow(edge - refilled_at)
    refilled_at, held_before, held_now = edge, held_now, 0
  end
  grow(now - refilled_at)
  refilled_at = now
elseif refilled_at - now > SLACK then
  clock_lag = clock_lag + refilled_at - now
  refilled_at = now
  stepped, changed = true, true
end
if withheld > max_withheld then -- nodes have returned, and have reported what they spent
  level = level + withheld - max_withheld
  withheld = max_withheld
end

-- The caller's policy comes into force if its version is newer, or if no node has used the one
-- in force for a whole slice: so nodes that disagree do not change it back and forth.
local slice = floor((refilled_at + clock_lag) / SLICE)
if version > stored_version or (not (rate == stored_rate and burst == stored_burst) and slice - policy_used_in > 1) then
  stored_version, stored_rate, stored_burst = version, rate, burst
  level = max(min(level, cap()), lowest())
  withheld = max(0, min(withheld, cap() - level))
  changed = true
end
if rate == stored_rate and burst == stored_burst and policy_used_in ~= slice then
  policy_used_in = slice
  changed = changed or known
end

demand = demand + min(arrived, 1000000000) * 1000
if reported_slice == slice then
  held_now = max(0, held_now - released)
  held_before = max(0, held_before - released_before)
elseif reported_slice == slice - 1 then
  held_before = max(0, held_before - released)
end
level = max(level, min(cap() - withheld, level + min(returned, stored_burst) * TOKEN))
local owed = min(debt, stored_burst) * TOKEN
local paid = min(owed, withheld)
withheld = withheld - paid
level = max(min(level, lowest()), level - owed + paid)

-- Grant nothing to a call that a Redis or a network that hung has brought too late: the tokens of
-- each node's call would be lost for two slices.
if latest > 0 and now > latest then need, extra = 0, 0 end

-- Grant tokens for waiting requests, then lease some if enough are left. Nodes hold at most half
-- of the burst. A lease is at most about half of the caller's part of the level, below half of the
-- burst a third: larger ones would make other nodes refuse the rest of a burst of requests.
local granted, leased = 0, 0
if not stepped then
  local available = floor(max(0, level) / TOKEN)
  granted = min(need, available)
  if granted == need and stored_burst >= LEAST then
    local bound = floor((available + held_now + held_before) / max(8, 2 * nodes + 1))
    if fair == 1 then
      bound = available
    elseif stored_burst < 3 * nodes then
      bound = 0
    elseif 2 * available < stored_burst then
      bound = floor(available / (3 * nodes))
    end
    leased = max(0, min(extra, bound, available - granted, floor(stored_burst / 2) - held_now - held_before))
  end
end
level = level - (granted + leased) * TOKEN
held_now = held_now + leased + hold * granted

local wait = 0
if level < TOKEN then wait = time_for(TOKEN - level) end

-- A refused request stores nothing: refilling later comes to the same level, and a flood of
-- refusals costs no replication. Once full, with nothing held or withheld, a bucket is as good
-- as absent; the extra second keeps its policy version over jitter.
local lasts = (slice + 2) * SLICE - refilled_at - clock_lag
if changed or stored_burst >= LEAST and arrived > 0 or granted + leased + released + released_before + returned + debt > 0 then
  local expires_in = time_for(stored_burst * TOKEN - level)
  if held_now + held_before > 0 then expires_in = max(expires_in, lasts + time_for((held_now + held_before) * TOKEN)) end
  if withheld > 0 then expires_in = max(expires_in, MEMBER_LIFE) end
  redis.call('SET', KEYS[1], struct.pack(FORM, level, refilled_at, clock_lag, held_now, held_before, policy_used_in, demand,
    withheld, stored_version, stored_rate, stored_burst),
    'PX', ceil(expires_in / 1000) + 1000)
end

return { granted, leased, level, wait, slice, lasts, held_now + held_before, demand }
