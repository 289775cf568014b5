package changefeed

import (
	"context"
	"fmt"
	"strconv"
	"time"
)

// Nodes of versions before heartbeats said After prove by probes: each writes a
// nonce into a hash every 50 ms, and is sure of what was visible then once a
// heartbeat names it. So that they go on beside newer nodes, a follower names
// the nonces that it finds. To be removed in the version after the next.

const (
	oldProbesKey = keyPrefix + "probes"
	// probeLife is how long the nonce of a node that is gone is still named.
	probeLife = time.Minute
)

// Probes returns the latest nonce of each older node that probed of late.
func (r *Redis) Probes(ctx context.Context) (probes map[string]uint64, err error) {
	defer func() { err = r.note("probes", err) }()
	key, err := r.key("probes")
	if err != nil {
		return nil, err
	}
	keys := []string{key}
	if !r.shared.Load() { // else they may be of nodes of another database
		keys = append(keys, oldProbesKey)
	}
	probes = map[string]uint64{}
	for _, key := range keys {
		fields, err := r.client.HGetAll(ctx, key).Result()
		if err != nil {
			return nil, fmt.Errorf("read probes: %w", err)
		}
		nonces, _ := recent(fields, probeLife)
		for node, text := range nonces {
			if nonce, err := strconv.ParseUint(text, 10, 64); err == nil {
				probes[node] = nonce
			}
		}
	}
	return probes, nil
}
