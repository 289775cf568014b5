package changefeed

// RedisCommands are what a node sends to Redis for the log of changes, or has
// its scripts do, on keys of their own among those of the log: for whoever wants
// to know whether it may. What follows a "multi" is one transaction.
func RedisCommands(own string) [][]any {
	log, hash, epoch, followers := logKey+own, logKey+own+":hash", logKey+own+":epoch", logKey+own+":followers"
	return [][]any{
		{"xadd", log, "1-1", entryField, "x"},
		{"xread", "count", 1, "streams", log, "0"},
		{"xinfo", "stream", log},
		{"xtrim", log, "minid", "1-1"},
		{"set", epoch, "x", "px", 1000},
		{"get", epoch},
		{"eval", "return redis.call('GET', KEYS[1])", 1, epoch},
		{"evalsha", setEpoch.Hash(), 3, epoch, followers, epoch, "x", "x", "x", "x", 1000},
		{"evalsha", appendEntries.Hash(), 2, log, epoch, own, "", ""},
		{"info", "server"},
		{"time"},
		{"hset", hash, "x", "y"},
		{"pexpire", hash, 1000},
		{"hgetall", hash},
		{"hdel", hash, "x"},
		{"del", log},
		{"del", hash},
		{"del", epoch},
		{"del", followers},
	}
}
