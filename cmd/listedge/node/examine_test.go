package node

import (
	"strings"
	"testing"

	"listedge/internal/sandbox/redistest"
	"listedge/internal/sandbox/sandboxtest"
)

// Errors that Redis has no word of their own for are told apart by their texts. A Redis without XTRIM
// MINID, as before 6.2, says so by a syntax error.
func TestRedisOfOldVersions(t *testing.T) {
	_, client := redistest.Start(t)
	for command, want := range map[string]string{"xtrim listedge:log newest 1-1": "use Redis 6.2 or later", "unlink2 a": "if this is a Sentinel",
		"cluster info": "this is no Cluster"} {
		t.Run(command, func(t *testing.T) {
			var words []any
			for word := range strings.FieldsSeq(command) {
				words = append(words, word)
			}
			err := client.Do(t.Context(), words...).Err()
			if do := redisRemedy(err); err == nil || !strings.Contains(do, want) {
				t.Errorf("%v: %q", err, do)
			}
		})
	}
}

// A Redis without INFO, as that of some providers, is not taken for one that evicts or is down.
func TestARedisThatDoesNotKnowInfo(t *testing.T) {
	n := &Node{redis: redisClients{limiter: redistest.Client(t, sandboxtest.Redis(t, "--rename-command", "INFO", ""))}}
	if err := n.askRedis(evictionFailure)(t.Context()); err != nil {
		t.Error(err)
	}
}
