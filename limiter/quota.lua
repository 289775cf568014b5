-- A workspace's quota: the count of its requests in one period. One key, one call.
--
-- KEYS[1]  a hash: what is taken in all, and for each run (a process) of a node the number of its
--          last call and what it has taken. A damaged value, of another type, counts as absent.
-- ARGV     quota    requests in the period
--          run      names the caller's run; then number, of this call in it: 1, 2, 3 …
--          floor    what the caller may have spent; it is taken in any case
--          need     requests that wait at the caller
--          want     further ones to take, of the caller's part of what is left
--          nodes    how many nodes the fleet has
--          last     1: the run ends with this call
--          life     milliseconds for which the count must be stored
-- Returns  what the caller has taken, and what is taken in all
--
-- All numbers are counts since the beginning of the run, not differences. So a call that
-- is repeated changes nothing, one that comes late is known by its number, and if Redis
-- has lost the count, the nodes bring back what they have taken.

local key, run = KEYS[1], 'run:' .. ARGV[2]
local quota, number, floor, need, want = tonumber(ARGV[1]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])

local state = redis.pcall('HMGET', key, 'total', run)
if state.err then
  if not string.find(state.err, 'WRONGTYPE', 1, true) then return state end
  redis.call('DEL', key)
  state = {}
end
local total = tonumber(state[1] or 0) or 0
local known, mine = string.match(state[2] or '0 0', '^(%d+) (%d+)$')
known, mine = tonumber(known or 0), tonumber(mine or 0)
if number <= known then return { mine, total } end

local free = quota - total + mine - floor
local taken = floor + math.max(0, math.min(need, free), math.min(want, math.floor(free / (3 * ARGV[7]))))
total = total - mine + taken
redis.call('HSET', key, 'total', string.format('%.0f', total), run, string.format('%.0f %.0f', number, taken))
if ARGV[8] == '1' then redis.call('HDEL', key, run) end
redis.call('PEXPIRE', key, ARGV[9])
return { taken, total }
