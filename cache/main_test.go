package cache

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"listedge/internal/changefeed"
	"listedge/internal/lists"
	"listedge/internal/sandbox/redistest"
	"listedge/internal/sandbox/sandboxtest"
)

func TestMain(m *testing.M) {
	redistest.Silence()
	goleak.VerifyTestMain(m)
}

// patient is a time limit for hangs. No test is about it, so it suits a slow machine.
const patient = time.Minute

var startRedis = redistest.Start

// testBound is the freshness bound of tests.
const testBound = 500 * time.Millisecond

var (
	listA = changefeed.List{Workspace: uuid.UUID{1}, Collection: lists.Items}
	listB = changefeed.List{Workspace: uuid.UUID{2}, Collection: lists.Items}
)

// ofShop is the database that the pages of tests are read from.
var ofShop = changefeed.Identity{System: "7400000000000000001", Database: 16384, Name: "shop"}

func followedAt(identity changefeed.Identity, timeline uint32) *changefeed.Followed {
	f := &changefeed.Followed{}
	f.SetServer(identity, timeline)
	return f
}

// inRedis is the name of a key's page in Redis.
func inRedis(key []byte) string {
	return "listedge:" + entryPrefix + ofShop.Digest() + ":" + string(key)
}

// open makes a cache that is closed before the test's other clean-ups. Options that are
// not set get large values, and Redis a long timeout.
func open(t testing.TB, o Options) *Cache {
	t.Helper()
	if o.Memory == 0 {
		o.Memory = 8 << 20
	}
	if o.FillTimeout == 0 {
		o.FillTimeout = patient
	}
	if o.Followed == nil {
		o.Followed = followedAt(ofShop, 1)
	}
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	if c.redis != nil {
		c.redis.budget, c.redis.storeBudget = patient, patient
	}
	t.Cleanup(func() { closeCache(t, c) })
	return c
}

func closeCache(t testing.TB, c *Cache) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*patient)
	defer cancel()
	if err := c.Close(ctx); err != nil {
		t.Errorf("close: %v", err)
	}
}

// eventually waits until the condition is true.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	sandboxtest.Within(t, patient, what, ok)
}

// putAged puts an entry of this age into the cache's memory.
func putAged(c *Cache, key []byte, body string, age time.Duration) {
	e := NewEntry([]byte(body), "next of "+body)
	e.Proof = c.clock.Now() - age
	e.ReadAt = e.Proof
	c.memory.put(key, e, time.Hour)
}

// keyOf is the key of a one-part query of workspace 1.
func keyOf(query string) []byte { return AppendKey(nil, [16]byte{1}, []byte(query)) }

// brings is a fill that succeeds at once.
func brings(body string) Fill {
	return Fill{Primary: func(context.Context, string) (FillResult, error) {
		return FillResult{Body: []byte(body), Next: "next of " + body}, nil
	}}
}

// fails is a fill that fails at once.
func fails(err error) Fill {
	return Fill{Primary: func(context.Context, string) (FillResult, error) { return FillResult{}, err }}
}

// want is the expected Result, without its age.
type want struct {
	body      string
	source    Source
	hadStale  bool
	collapsed bool
	err       error
}

func (w want) check(t testing.TB, r Result, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%v, want %+v", err, w)
	}
	got := want{string(r.Entry.Body), r.Source, r.HadStale, r.Collapsed, r.Err}
	if got != w {
		t.Fatalf("%+v, want %+v", got, w)
	}
	if r.Age < 0 || r.Entry.Next != "next of "+w.body {
		t.Fatalf("age %v, next %q", r.Age, r.Entry.Next)
	}
}

// testsBegan is the base time of entries that are in no cache.
var testsBegan = time.Now()

// newEntryAt is an entry that was read from the primary at that time.
func newEntryAt(body []byte, next string, proof time.Time) *Entry {
	e := NewEntry(body, next)
	e.Proof = proof.Sub(testsBegan)
	e.ReadAt = e.Proof
	return e
}
