package cache

import (
	"bytes"
	"fmt"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"listedge/internal/changefeed"
)

// One page must not take the room of many: memory turns it away, and has no
// older one in its place.
func TestMemoryKeepsNoPageThatIsTooLarge(t *testing.T) {
	m := openMemory(t, 16<<20)
	now := time.Now()
	for i := range 100 {
		m.put(keyOf(fmt.Sprint(i)), newEntryAt(rows(4_000), "", now), time.Hour)
	}
	used := m.used()
	large := newEntryAt(make([]byte, 1<<20), "", now.Add(1))
	for _, key := range []string{"1", "new"} {
		if h := m.put(keyOf(key), large, time.Hour); h.entry.Load() != large {
			t.Errorf("%s: another page is shared", key)
		}
		if m.get(keyOf(key)) != nil {
			t.Errorf("%s: it is kept, or one before it", key)
		}
	}
	if now := m.used(); now > used || m.evicted.Load() != 2 {
		t.Errorf("%d bytes, before %d; %d evicted", now, used, m.evicted.Load())
	}
	if p := newEntryAt([]byte("small"), "", now.Add(2)); m.put(keyOf("1"), p, time.Hour).entry.Load() != p || m.get(keyOf("1")) == nil {
		t.Error("a smaller one in its place is not kept")
	}
	if m.put(keyOf("1"), large, time.Hour); m.get(keyOf("1")) == nil {
		t.Error("a newer one had to go for it")
	}
}

func TestRedisKeepsNoPageThatIsTooLarge(t *testing.T) {
	_, client := startRedis(t)
	c := open(t, Options{Redis: client, TTL: time.Hour, MaxStale: time.Hour})
	for body, there := range map[int]int64{maxRedisEntry / 4: 1, maxRedisEntry: 0} {
		key := keyOf(fmt.Sprint(body))
		if _, err := c.Forward(key, changefeed.List{}, brings(string(make([]byte, body)))); err != nil {
			t.Fatal(err)
		}
		stored(t, c)
		if n := client.Exists(t.Context(), inRedis(key)).Val(); n != there {
			t.Errorf("%d bytes: %d entries", body, n)
		}
	}
	if s := c.Stats(); s.RedisFailures != 0 || s.RedisDropped != 1 {
		t.Errorf("%+v", s)
	}
}

// A value that somebody else has written, or that is broken, is not read into
// memory whole.
func TestAValueThatIsTooLongIsNotRead(t *testing.T) {
	_, client := startRedis(t)
	c := open(t, Options{Redis: client, TTL: time.Hour, MaxStale: time.Hour})
	c.redis.budget = patient
	key := keyOf("q")
	const size = 64 << 20
	if err := client.SetRange(t.Context(), inRedis(key), size-1, "x").Err(); err != nil {
		t.Fatal(err)
	}
	before := sent(t, client)
	for name, read := range map[string]func() *Entry{
		"a page":            func() *Entry { return c.redis.get(key) },
		"a page of its age": func() *Entry { return c.redis.getAged(key) },
	} {
		if p := read(); p != nil {
			t.Errorf("%s: %d bytes", name, len(p.Body))
		}
	}
	if n := sent(t, client) - before; n > size/4 {
		t.Errorf("%d bytes were sent", n)
	}
	if s := c.Stats(); s.RedisCorrupt != 2 || s.RedisFailures != 0 {
		t.Errorf("%+v", s)
	}
	r, err := c.Forward(key, changefeed.List{}, brings("page"))
	want{body: "page", source: Origin}.check(t, r, err)
	stored(t, c)
	if p := c.redis.get(key); p == nil || !bytes.Equal(p.Body, []byte("page")) {
		t.Error("the page did not take its place")
	}
}

// sent is how many bytes the server has sent so far.
func sent(t *testing.T, client *redis.Client) int {
	t.Helper()
	info := client.Info(t.Context(), "stats").Val()
	n, err := strconv.Atoi(regexp.MustCompile(`total_net_output_bytes:(\d+)`).FindStringSubmatch(info)[1])
	if err != nil {
		t.Fatal(err)
	}
	return n
}
