-- The members of a fleet: the time of each node's last heartbeat, and into how many parts the node divides
-- each bucket. One key, one call.
--
-- KEYS[1]  a sorted set: nodes by tick * SIZES + parts, which is exact until the year 2144. A value of another
--          type is damaged, and is written anew.
-- ARGV     node     its name
--          state    present, recovering or leaving
--          parts    it uses at most one of so many without Redis, until Redis has executed its next heartbeat
--          latest   a heartbeat that is executed after this time is not recorded: a network or a Redis
--                   that hung may bring it while its node is cut off and uses its part
-- Returns  how many nodes there are, the share of each rate that silent ones may be using, in millionths,
--          and Redis' time
--
-- A node counts as silent SILENT_FOR after its last heartbeat. The others learn that with their own
-- next heartbeat: at the latest lease.MissingAfter after the silent node's last one.
-- It writes in every state, so that it fails on a Redis that accepts no writes. A node is forgotten a
-- minute after its last heartbeat. One that recovers is silent, but not forgotten: also a Redis that has
-- lost it hears that it uses its part.
-- After the clock was set back, times in the future become now: else a silent node would not be silent
-- until the clock has reached its time again.

local MEMBER_LIFE, SILENT_FOR, TICK = 60000000, 1100000, 10000 -- microseconds; the first is lease.MemberLife
local SIZES, WHOLE = 16384, 1000000

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local function score(ago, parts) return string.format('%.0f', math.floor((now - ago) / TICK) * SIZES + parts) end
local function parts_of(score) return math.max(1, score % SIZES) end
local parts = math.min(ARGV[3], SIZES - 1)
local size = redis.pcall('ZCARD', KEYS[1])
if type(size) == 'table' and string.find(size.err, 'WRONGTYPE', 1, true) then
  redis.call('DEL', KEYS[1])
end
if ARGV[2] == 'leaving' then
  redis.call('ZREM', KEYS[1], ARGV[1])
elseif now <= tonumber(ARGV[4]) then
  if ARGV[2] == 'present' then
    redis.call('ZADD', KEYS[1], score(0, parts), ARGV[1])
  else
    redis.call('ZADD', KEYS[1], 'GT', score(SILENT_FOR, parts), ARGV[1])
  end
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', score(MEMBER_LIFE, 0))
local ahead = redis.call('ZRANGEBYSCORE', KEYS[1], score(-TICK, 0), '+inf', 'WITHSCORES')
for i = 1, #ahead, 2 do
  redis.call('ZADD', KEYS[1], score(0, parts_of(ahead[i + 1])), ahead[i])
end
redis.call('PEXPIRE', KEYS[1], MEMBER_LIFE / 1000)
local silent, share = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', score(SILENT_FOR, SIZES - 1), 'WITHSCORES'), 0
for i = 2, #silent, 2 do
  share = share + math.ceil(WHOLE / parts_of(silent[i]))
end
return { redis.call('ZCARD', KEYS[1]), math.min(share, WHOLE), now }
