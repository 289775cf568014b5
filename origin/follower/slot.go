package follower

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"listedge/origin/postgres"
)

//go:embed slot.sql
var createSlotSQL string

const (
	// idleInterval is the least time between two polls of the slot by a waiting node
	// while heartbeats arrive. It is long, so that a large fleet costs the primary little.
	idleInterval = 10 * time.Second
	// silenceThreshold is how long no heartbeat must have come before a waiting node
	// polls at once: five periods.
	silenceThreshold = 5 * heartbeatEvery
	// pollFirst and pollLast bound the time between two polls after silenceThreshold. It
	// grows with the silence: the slot is taken soon after the holder's end, and a fleet
	// without heartbeats does not flood the primary.
	pollFirst = 20 * time.Millisecond
	pollLast  = 250 * time.Millisecond
	// createTimeout bounds making a slot for a command. Postgres waits three times for
	// the end of all open write transactions. Of the first slot, Postgres 19 also waits until each of its
	// processes has noticed that more is to be logged, which the checkpointer may while it syncs files.
	createTimeout = time.Minute
	// createSlow is when a node says that it waits.
	createSlow = 10 * time.Second
	// createByNodeTimeout bounds making a slot for a node. It is long, because a node that
	// gives up begins again: it would never succeed if long transactions overlap.
	createByNodeTimeout = 10 * time.Minute
)

// waitPoll waits until it is time to poll the slot again: when heartbeats have
// stopped for silenceThreshold, when the node's server turns out to be an old
// primary, or after idleInterval. Jitter keeps nodes from polling together.
func (f *Follower) waitPoll(ctx context.Context) error {
	idleUntil := time.Now().Add(idleInterval + rand.N(idleInterval/5))
	for {
		silence := f.options.Silence()
		poll := pollInterval(silence)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(max(0, silenceThreshold-silence) + poll/2 + rand.N(poll)):
		}
		if f.options.Silence() > silenceThreshold || time.Now().After(idleUntil) || f.options.Followed.OldTimeline() != nil {
			return nil
		}
	}
}

// pollInterval is a tenth of the silence, within its bounds.
func pollInterval(silence time.Duration) time.Duration {
	return min(max(silence/10, pollFirst), pollLast)
}

var errHeld = errors.New("another node took the slot")

// slot is the state of the replication slot when it was last polled.
type slot struct {
	exists   bool
	held     bool   // by a node, or Postgres is still making it
	lost     bool   // Postgres has removed WAL that it needs
	retained uint64 // bytes of WAL that Postgres keeps for it
}

func (p *primary) slot(ctx context.Context) (s slot, err error) {
	err = p.row(ctx, `SELECT active_pid IS NOT NULL, coalesce(wal_status, '') = 'lost',
			coalesce(greatest(pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END, restart_lsn), 0), 0)::bigint
		FROM pg_replication_slots WHERE slot_name IN ($1::text, $1::text || '_new') ORDER BY slot_name LIMIT 1`, p.slotName)(&s.held, &s.lost, &s.retained)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return slot{}, nil
	case err != nil:
		return s, fmt.Errorf("poll the slot: %w", err)
	}
	s.exists = true
	return s, nil
}

// createSlot makes the slot, unless another node is faster.
func (p *primary) createSlot(ctx context.Context, timeout time.Duration) (created bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	_, err = p.conn.Exec(ctx, strings.ReplaceAll(createSlotSQL, "NAME", p.slotName))
	switch postgres.Code(err) {
	case "":
	case duplicateObject: // made by another node, or about to be
		return false, nil
	case insufficientPrivilege:
		return false, fmt.Errorf("%w: the user may not make a slot (ALTER ROLE … REPLICATION): %w", ErrIncapable, err)
	case configurationLimitExceeded:
		return false, fmt.Errorf("%w: max_replication_slots are used up (making the slot takes two for a moment): %w", ErrIncapable, err)
	}
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			return false, fmt.Errorf("make the slot: Postgres waits for the end of a write transaction that has been open for long: %w", err)
		}
		return false, fmt.Errorf("make the slot: %w", err)
	}
	return true, nil
}

// dropSlot drops the slot, unless another node holds it or has dropped it: other nodes see
// what this one sees.
func (p *primary) dropSlot(ctx context.Context) error {
	switch err := p.tryDropSlot(ctx); postgres.Code(err) {
	case undefinedObject, objectInUse:
		return nil
	default:
		return err
	}
}

// tryDropSlot drops the slot. A walsender whose connection was closed holds it for a moment
// more.
func (p *primary) tryDropSlot(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	drop := func() (err error) {
		_, err = p.conn.Exec(ctx, `SELECT pg_drop_replication_slot($1)`, p.slotName)
		return err
	}
	err := drop()
	for ends := time.Now().Add(callTimeout / 2); postgres.Code(err) == objectInUse && time.Now().Before(ends); err = drop() {
		time.Sleep(pollPause)
	}
	if err != nil {
		return fmt.Errorf("drop the slot: %w", err)
	}
	return nil
}

// DropSlot drops the database's slot for a region, unless a node follows through it. dropped
// is false if there is none.
func DropSlot(ctx context.Context, databaseURL, region string) (name string, dropped bool, err error) {
	p, err := connectPrimary(ctx, databaseURL, region)
	if err != nil {
		return "", false, err
	}
	defer p.close()
	err = p.tryDropSlot(ctx)
	switch dropped = err == nil; postgres.Code(err) {
	case undefinedObject:
		err = nil
	case objectInUse:
		err = fmt.Errorf("a node follows through the slot %s: stop all nodes of the fleet first: %w", p.slotName, err)
	}
	return p.slotName, dropped, err
}

// Leave drops the slot if Postgres would keep WAL for it without limit. It is called when this
// node has stopped and no other node of its fleet runs. The next node makes a new slot.
func (f *Follower) Leave(ctx context.Context) {
	if !f.warned {
		return
	}
	p, err := connectPrimary(ctx, f.options.DatabaseURL, f.options.Followed.Region)
	if err != nil {
		return
	}
	defer p.close()
	if p.unlimited && p.tryDropSlot(ctx) == nil {
		f.options.Logger.Info("dropped the slot, because no other node runs and "+unlimitedSlot, "slot", p.slotName)
	}
}

const (
	unlimitedSlot   = "max_slot_wal_keep_size is not set: while no node follows, the slot may fill the disk of the primary"
	unlimitedSlotDo = "set max_slot_wal_keep_size to what the disk can spare, and reload"
)

// CreateSlot makes the database's slot for a region unless it exists.
// Errors: ErrIncapable.
func CreateSlot(ctx context.Context, databaseURL, region string) (name string, created bool, err error) {
	p, err := connectPrimary(ctx, databaseURL, region)
	if err != nil {
		return "", false, err
	}
	defer p.close()
	s, err := p.slot(ctx)
	if err != nil || s.exists {
		return p.slotName, false, err
	}
	if err = p.checkPrerequisites(ctx); err == nil {
		created, err = p.createSlot(ctx, createTimeout)
	}
	return p.slotName, created, err
}
