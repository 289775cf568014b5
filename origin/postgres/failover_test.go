package postgres

import (
	"strings"
	"testing"

	"listedge/internal/fleet"
	"listedge/internal/sandbox/sandboxtest"
)

// The URL names an old primary first, which runs again after its standby was promoted. It is
// asked only as long as nobody knows of the new one, or if the new one is away.
func TestOfSeveralPrimariesTheFollowedOneIsAsked(t *testing.T) {
	old := sandboxtest.Postgres(t)
	next := sandboxtest.Standby(t, old, nil)
	identify := func(url string, followed *fleet.Followed) fleet.Server {
		t.Helper()
		db, err := Open(t.Context(), Options{URL: url, Connections: 1, QueryTimeout: ConnectTimeout, Followed: followed})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = db.Close(t.Context()) }()
		var promoted bool
		if url == next.URL("postgres") {
			if err := db.Usage.Pool.QueryRow(t.Context(), "SELECT pg_promote()").Scan(&promoted); err != nil {
				t.Fatal(err)
			}
		}
		s, err := Identify(t.Context(), db.Pages.Pool)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	both := strings.Replace(old.URL("postgres"), old.Addr(), old.Addr()+","+next.Addr(), 1)
	followed := &fleet.Followed{}
	followed.SetServer(identify(next.URL("postgres"), followed))
	if s := identify(both, followed); s.Timeline != 1 {
		t.Errorf("before it is known which timeline is followed: %d", s.Timeline)
	}
	followed.ObserveEpoch(followed.Digest() + ".2.a.b.c")
	if s := identify(both, followed); s.Timeline != 2 {
		t.Errorf("of an old and a new primary: timeline %d", s.Timeline)
	}
	if err := next.Stop(); err != nil {
		t.Fatal(err)
	}
	if s := identify(both, followed); s.Timeline != 1 {
		t.Errorf("of an old primary alone: timeline %d", s.Timeline)
	}
}
