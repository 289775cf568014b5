package limiter

import "testing"

// What a node is said to send is what a Redis carries out.
func TestRedisCommandsAreCarriedOut(t *testing.T) {
	t.Parallel()
	_, client := startRedis(t)
	for _, c := range RedisCommands("test") {
		if err := client.Do(t.Context(), c...).Err(); err != nil {
			t.Errorf("%v: %v", c[0], err)
		}
	}
}
