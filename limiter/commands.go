package limiter

// RedisCommands are what a node sends to Redis for limits, or has its scripts
// do, on keys of their own among those of buckets: for whoever wants to know
// whether it may.
func RedisCommands(own string) [][]any {
	bucket, nodes := "rl:{"+own+"}:k", "rl:{"+own+"}:nodes"
	c := call{policy: Policy{Burst: 1, r: 1, p: 1_000_000}, life: leaseLife, need: 1}
	return [][]any{
		{"time"},
		{"set", bucket, "x", "px", 1000},
		{"get", bucket},
		{"del", bucket},
		append([]any{"eval", tokenBucketScript, 1, bucket}, c.arguments()...),
		append([]any{"evalsha", tokenBucketDigest, 1, bucket}, c.arguments()...),
		{"zadd", nodes, 1, "x"},
		{"pexpire", nodes, 1000},
		{"zcard", nodes},
		{"zcount", nodes, 1, "+inf"},
		{"zrem", nodes, "y"},
		{"zremrangebyscore", nodes, "-inf", 1},
		{"del", bucket},
		{"del", nodes},
	}
}
