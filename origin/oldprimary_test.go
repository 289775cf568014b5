package origin

import (
	"net/url"
	"testing"

	"listedge/internal/sandbox/sandboxtest"
	"listedge/origin/admin"
	"listedge/origin/apikey"
	"listedge/origin/postgres"
)

// After a fail-over a connection may still lead to the old primary, which lives
// on. That one does not know a key made since: its answer has no row of a key,
// and is known by its own row to be another server's.
func TestAnOldPrimaryThatDoesNotKnowAKeyIsNotBelieved(t *testing.T) {
	t.Parallel()
	oldURL := newDatabase(t)
	old, err := url.Parse(oldURL)
	must(err)
	next := sandboxtest.Postgres(t)
	nextURL := next.URL(old.Path[1:])
	ctx := within(t, patience)
	must(admin.CreateDatabase(ctx, next.URL("postgres"), old.Path[1:]))
	_, err = admin.MigrateUp(ctx, nextURL)
	must(err)
	conn, err := admin.Open(ctx, nextURL)
	must(err)
	defer conn.Close()
	w, err := conn.CreateWorkspace(ctx, "w", nil, nil, nil)
	must(err)
	made, err := conn.CreateKey(ctx, admin.NewKey{Workspace: w.ID})
	must(err)
	hash, _ := apikey.HashOf([]byte(made.Key))
	run := runOf(t, nextURL)
	password, _ := old.User.Password()
	execOn(t, nextURL, "ALTER USER postgres PASSWORD "+quoted(password)) // one URL leads to both

	network, through := startRelay(t, oldURL, whole)
	db := openDatabase(t, postgres.Options{URL: through})
	store := apikey.NewStore(db)
	lookup := func(run string, hashes ...apikey.Hash) map[apikey.Hash]apikey.Key {
		t.Helper()
		found, err := store.Lookup(ctx, hashes, run)
		must(err)
		return found
	}
	lookup("", hash)
	network.redirect(next.Addr())
	if found := lookup("", hash); len(found) != 0 {
		t.Fatalf("the connection does not lead to the old primary: %+v", found)
	}
	if found := lookup(run, apikey.Hash{1}, hash); len(found) != 1 || found[hash].ID != made.ID || found[hash].StartedAt.Value() != run {
		t.Errorf("a valid key, once the new primary is known: %+v", found)
	}

	// That no key is found does not cost the right server's connection.
	before := db.Keys.Pool.Stat().NewConnsCount()
	for range 3 {
		if found := lookup(run, apikey.Hash{1}); len(found) != 0 {
			t.Errorf("%+v", found)
		}
	}
	if anew := db.Keys.Pool.Stat().NewConnsCount() - before; anew != 0 {
		t.Errorf("%d connections were made anew", anew)
	}
}
