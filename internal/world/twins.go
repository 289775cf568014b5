package world

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Twin does what a script of the product does, with the keys and arguments of a call. It returns nil, a string, an int64, a
// []any, or a RedisError. Tx.Call is redis.pcall, and Tx.Must is redis.call.
type Twin func(t *Tx, keys, args []string) any

// twinOf returns the twin of the script with a digest; nil = there is none. Who changes a script changes its digest: then the
// twin is to be looked at, too, and TestRedis, which compares both on a real server.
func twinOf(digest string) Twin {
	switch digest {
	case "d3c21d0c2b9ca22f82737626a27bcaf5d288f99f":
		return getByScript
	case "5494753d4f56d9381b45cd970301e2586d3e115f":
		return setEpoch
	case "3dd837a43c8bfc33871fc06a0320b6f3063b5907":
		return appendEntries
	case "2655192e8ce1a69f79df54db0e057504345b52f0":
		return tokenBucket
	case "bde01bd8195d719c9b3de824e89e0b4ac1a0c211":
		return quota
	case "aba1707c3969f43618deffd0e44520ae740ad09d":
		return heartbeat
	}
	return nil
}

// getByScript is the twin of a script that only shows whether a node may use scripts.
func getByScript(t *Tx, keys, _ []string) any { return t.Must("GET", keys[0]) }

// setEpoch is the twin of the script in internal/changefeed.
func setEpoch(t *Tx, keys, args []string) any {
	present, _ := t.Call("GET", keys[0]).(string)
	if present != args[0] && present != args[1] {
		return int64(0)
	}
	t.Must("SET", keys[0], args[1])
	return int64(1)
}

// appendEntries is the twin of the script in internal/changefeed.
func appendEntries(t *Tx, keys, args []string) any {
	log, epoch, hurry := keys[0], keys[1], keys[2]
	present := t.Call("GET", epoch)
	if args[1] == "" && present != nil && present != args[0] {
		return []any{int64(-1)}
	}
	accepted := int64(1)
	for entry := range slices.Chunk(args[3:], 2) {
		added := t.Call("XADD", log, entry[0], "e", entry[1])
		if added == wrongType {
			t.Must("DEL", log)
			added = t.Call("XADD", log, entry[0], "e", entry[1])
		}
		if refused, ok := added.(RedisError); ok {
			if !strings.Contains(string(refused), "equal or smaller") && !strings.Contains(string(refused), "must be greater") {
				return refused
			}
			accepted = 0
		}
	}
	if args[2] != "" {
		t.Must("PEXPIRE", log, args[2])
	}
	return []any{accepted, t.Must("DEL", hurry)}
}

// tokenBucket is the twin of token_bucket.lua.
func tokenBucket(t *Tx, keys, args []string) any {
	c, ok := UnpackBucketCall([]byte(args[0]))
	if !ok {
		panic(fmt.Sprintf("BUG: a call of a bucket with %q", args))
	}
	stored, _ := t.Call("GET", keys[0]).(string)
	b, ok := UnpackBucket([]byte(stored))
	if !ok {
		b = Bucket{} // is not sound
	}
	r, changed := b.Execute(&c, t.Now())
	if changed {
		life := int64(math.Ceil(float64(b.UntilAbsent())/1000)) + 1000
		t.Must("SET", keys[0], string(b.Pack()), "PX", strconv.FormatInt(life, 10))
	}
	return integers(r.Numbers())
}

// quota is the twin of quota.lua.
func quota(t *Tx, keys, args []string) any {
	key, run, c := keys[0], "run:"+args[1], QuotaCall{}
	for i, to := range []*int64{&c.Tokens, &c.Run, &c.Number, &c.Floor, &c.Need, &c.Want, &c.Nodes, &c.Last, &c.Life} {
		if i != 1 {
			*to = number(args[i])
		}
	}
	is := t.Call("HMGET", key, "total", run)
	if is == wrongType {
		t.Must("DEL", key)
		is = []any{nil, nil}
	}
	state, ok := is.([]any)
	if !ok {
		return is
	}
	text := func(i int) string { s, _ := state[i].(string); return s }
	q, known := Quota{Runs: map[int64]QuotaRun{}}, QuotaRun{}
	q.Total, _ = strconv.ParseInt(text(0), 10, 64)
	_, _ = fmt.Sscanf(text(1), "%d %d", &known.Number, &known.Taken)
	q.Runs[0] = known
	answer := q.Execute(&c)
	if c.Number > known.Number {
		t.Must("HSET", key, "total", strconv.FormatInt(q.Total, 10), run, fmt.Sprint(c.Number, answer[0]))
		if c.Last == 1 {
			t.Must("HDEL", key, run)
		}
		t.Must("PEXPIRE", key, strconv.FormatInt(c.Life, 10))
	}
	return integers(answer)
}

// heartbeat is the twin of heartbeat.lua.
func heartbeat(t *Tx, keys, args []string) any {
	key, m := keys[0], Members{}
	of, err := valueOf[sorted](t, key)
	if err != nil {
		t.Must("DEL", key)
	}
	for node, at := range of {
		m[node] = int64(at)
	}
	answer := m.Beat(args[0], args[1], number(args[2]), t.Now())
	next := sorted{}
	for node, at := range m {
		next[node] = float64(at)
	}
	t.replace(key, next, len(next))
	t.Must("PEXPIRE", key, strconv.Itoa(memberLife/1000))
	return integers(answer)
}

func integers(of []int64) (all []any) {
	for _, n := range of {
		all = append(all, n)
	}
	return all
}
