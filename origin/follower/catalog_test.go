package follower_test

import (
	"fmt"
	"slices"
	"testing"

	"listedge/internal/changefeed"
	"listedge/internal/list/listtest"
)

// partitioned divides items into the partitions items_0 and items_1.
const partitioned = `ALTER TABLE items RENAME TO items_old;
	CREATE TABLE items (LIKE items_old INCLUDING DEFAULTS, PRIMARY KEY (workspace_id, id)) PARTITION BY HASH (workspace_id);
	CREATE TABLE items_0 PARTITION OF items FOR VALUES WITH (MODULUS 2, REMAINDER 0);
	CREATE TABLE items_1 PARTITION OF items FOR VALUES WITH (MODULUS 2, REMAINDER 1);
	ALTER PUBLICATION listedge ADD TABLE items; ALTER PUBLICATION listedge DROP TABLE items_old;`

// Some DDL changes what pages show and is not in the stream of changes. Each heartbeat whose
// snapshot sees it sees a published change that touches everything, too.
func TestNoHeartbeatSeesAChangeOfTheSchemaThatIsNotPublished(t *testing.T) {
	t.Parallel()
	w := newWorld(t, server())
	w.exec(partitioned + `CREATE TABLE elsewhere (LIKE items INCLUDING ALL); CREATE SCHEMA other; CREATE TABLE other.spare (LIKE contacts INCLUDING ALL)`)
	f := w.follow()
	w.awaitFollowing(f)
	for _, sql := range []string{
		"ALTER TABLE items ALTER unit TYPE text USING 'x'",
		"ALTER TABLE items RENAME unit TO sku_; ALTER TABLE items RENAME sku TO unit; ALTER TABLE items RENAME sku_ TO sku",
		"ALTER TABLE items DETACH PARTITION items_1",
		"ALTER TABLE items ATTACH PARTITION elsewhere FOR VALUES WITH (MODULUS 2, REMAINDER 1)",
		"DROP TABLE items_0",
		"CREATE TABLE items_0 PARTITION OF items FOR VALUES WITH (MODULUS 2, REMAINDER 0)",
		"CREATE OR REPLACE FUNCTION listedge_fold(t text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN lower(t)",
		"ALTER TABLE contacts ADD CONSTRAINT once UNIQUE (id, workspace_id, name)",
		"ALTER TABLE contacts DROP CONSTRAINT once",
		"ALTER TABLE elsewhere SET UNLOGGED; ALTER TABLE elsewhere SET LOGGED",
	} {
		w.exec("BEGIN; " + sql)
		xid := w.text("SELECT pg_current_xact_id()::text")
		w.exec("COMMIT")
		var published []string
		heartbeat := w.await("a heartbeat that sees "+sql, func(e changefeed.Entry) bool {
			if e.Change != nil && touched(*e.Change) == all {
				published = append(published, fmt.Sprint(e.Change.XID))
			}
			return e.Heartbeat != nil && sees(e.Heartbeat.Snapshot, xid)
		}).Heartbeat
		if !slices.ContainsFunc(published, func(xid string) bool { return sees(heartbeat.Snapshot, xid) }) {
			t.Errorf("the snapshot %s sees %s, and none of the changes %v", heartbeat.Snapshot, sql, published)
		}
	}
	if s := f.Stats(); s.Terms != 1 {
		t.Errorf("%d terms", s.Terms)
	}
}

// DETACH … CONCURRENTLY takes rows out of the lists before it waits for older readers.
func TestAPartitionThatIsBeingDetached(t *testing.T) {
	t.Parallel()
	w := newWorld(t, server())
	w.exec(partitioned)
	w.awaitFollowing(w.follow())
	reader := open(t, w.url)
	must2(reader.Exec(w.ctx(), "BEGIN; SELECT FROM items"))
	ctx := w.ctx()
	detached := make(chan error, 1)
	go func() {
		_, err := w.db.Exec(ctx, "ALTER TABLE items DETACH PARTITION items_0 CONCURRENTLY")
		detached <- err
	}()
	if is := touched(w.change()); is != all {
		t.Error(is)
	}
	select {
	case err := <-detached:
		t.Errorf("it did not wait: %v", err)
	default:
	}
	must2(reader.Exec(w.ctx(), "ROLLBACK"))
	if err := <-detached; err != nil {
		t.Error(err)
	}
}

func sees(snapshot, xid string) bool {
	var n uint64
	_, err := fmt.Sscan(xid, &n)
	must(err)
	s, err := changefeed.ParseSnapshot(snapshot)
	must(err)
	return s.Sees(n)
}

// A partition that is made while the follower reads the publication is not reported as
// missing: the epoch goes on. (On a busy machine Postgres may end a term whose replies come late.)
func TestPartitionsMadeOneAfterAnother(t *testing.T) {
	t.Parallel()
	w := newWorld(t, server())
	w.exec(`ALTER TABLE items RENAME TO items_old;
		CREATE TABLE items (LIKE items_old INCLUDING DEFAULTS, PRIMARY KEY (workspace_id, id)) PARTITION BY RANGE (workspace_id);
		ALTER PUBLICATION listedge ADD TABLE items; ALTER PUBLICATION listedge DROP TABLE items_old`)
	f := w.follow()
	w.awaitFollowing(f)
	for n := range 200 {
		w.exec(fmt.Sprintf("CREATE TABLE items_%d PARTITION OF items FOR VALUES FROM ('%s') TO ('%s')", n, listtest.ID(n), listtest.ID(n+1)))
	}
	w.eventually("following", f.Following)
	if epoch, err := w.log.Epoch(w.ctx()); epoch != w.epoch || err != nil {
		t.Errorf("epoch %s became %s (%v)", w.epoch, epoch, err)
	}
	w.heartbeat()
}
