-- The members of a fleet: the time of each node's last heartbeat. One key, one call.
--
-- KEYS[1]  a sorted set: nodes by the time of their last heartbeat. A value of another type is damaged,
--          and is written anew.
-- ARGV     node     its name
--          state    present, recovering or leaving
--          latest   a heartbeat that is executed after this time is not recorded: a network or a Redis
--                   that hung may bring it while its node is cut off and uses its part
-- Returns  how many nodes there are, how many of them are missing, and Redis' time
--
-- A node counts as missing SILENT_FOR after its last heartbeat. The others learn that with their own
-- next heartbeat: at the latest lease.MissingAfter after the missing node's last one.
-- It writes in every state, so that it fails on a Redis that accepts no writes. A node is forgotten a
-- minute after its last heartbeat. After the clock was set back, times in the future become now: else a
-- silent node would not be missing until the clock has reached its time again.

local MEMBER_LIFE, SILENT_FOR = 60000000, 1100000 -- microseconds; the first is lease.MemberLife

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local function before(span) return string.format('%.0f', now - span) end
local size = redis.pcall('ZCARD', KEYS[1])
if type(size) == 'table' and string.find(size.err, 'WRONGTYPE', 1, true) then
  redis.call('DEL', KEYS[1])
end
if ARGV[2] == 'present' and now <= tonumber(ARGV[3]) then
  redis.call('ZADD', KEYS[1], before(0), ARGV[1])
elseif ARGV[2] == 'leaving' then
  redis.call('ZREM', KEYS[1], ARGV[1])
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', before(MEMBER_LIFE))
for _, node in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. before(0), '+inf')) do
  redis.call('ZADD', KEYS[1], before(0), node)
end
redis.call('PEXPIRE', KEYS[1], MEMBER_LIFE / 1000)
return { redis.call('ZCARD', KEYS[1]), redis.call('ZCOUNT', KEYS[1], '-inf', before(SILENT_FOR)), now }
