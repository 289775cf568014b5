package limiter

// RedisCommands are what a node sends to Redis for limits, or has its scripts
// do, on keys of their own among those of buckets: for whoever wants to know
// whether it may.
func RedisCommands(own string) [][]any {
	bucket, nodes := "rl:{"+own+"}:k", "rl:{"+own+"}:nodes"
	return [][]any{
		{"time"},
		{"set", bucket, "x", "px", 1000},
		{"get", bucket},
		{"del", bucket},
		{"eval", tokenBucketScript, 1, bucket, 1, 1_000_000, 1, 1, leaseLife, 1, 0, 0, 0, 0, 0, 0, 0},
		{"evalsha", tokenBucketDigest, 1, bucket, 1, 1_000_000, 1, 1, leaseLife, 0, 0, 0, 0, 0, 0, 0, 0},
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
