package cache

// RedisCommands are what a node sends to Redis for pages, on keys of their own
// among those of pages: for whoever wants to know whether it may.
func RedisCommands(own string) [][]any {
	page, claim := redisKeyPrefix+own, claimPrefix+own
	life := claimLife.Milliseconds()
	return [][]any{
		{"set", page, "x", "px", life},
		{"pttl", page},
		{"getrange", page, 0, redisEntry},
		{"set", claim, 1, "px", life, "nx"},
		{"del", page},
		{"del", claim},
	}
}
