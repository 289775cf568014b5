package node

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"reflect"
	"regexp"
	"strings"
	"time"
	"unicode"

	"github.com/dustin/go-humanize"

	"listedge/edge"
	"listedge/limiter"
	"listedge/origin/postgres"
)

// RegionFlag names one of several fleets that share a Postgres or a Redis.
type RegionFlag struct {
	Region string `help:"Name of this fleet, if fleets share a Postgres or a Redis. Its nodes share a replication slot." placeholder:"NAME"`
}

var regionName = regexp.MustCompile(`^[a-z0-9_]{0,20}$`)

// Validate refuses what cannot be part of the name of a replication slot.
func (f *RegionFlag) Validate() error {
	if !regionName.MatchString(f.Region) || f.Region == "new" {
		return fmt.Errorf("--region must have at most 20 characters of a-z, 0-9 and _, and must not be new")
	}
	return nil
}

// ServerFlags name a node's servers besides its primary, and bound its page queries.
type ServerFlags struct {
	RedisURL            string   `help:"redis[s]://host:port, of a Cluster several; redis+sentinel://host:port/master. Empty: none." placeholder:"URL" secret:""`
	ReplicaURL          []string `help:"Hot standbys that may serve misses, comma-separated." placeholder:"URL" secret:""`
	DatabaseConnections int      `help:"Concurrent page queries, to the primary and to each replica; eight times as many may wait." default:"16"`
}

// Validate refuses malformed URLs.
func (f *ServerFlags) Validate() error {
	for _, url := range f.ReplicaURL {
		if url == "" {
			return errors.New("--replica-url must not be empty")
		}
		if _, err := postgres.ParseURL(url); err != nil {
			return fmt.Errorf("--replica-url: %w", err)
		}
	}
	if f.RedisURL != "" {
		if _, err := ParseRedisURL(f.RedisURL); err != nil {
			return fmt.Errorf("--redis-url: %w", err)
		}
	}
	if f.DatabaseConnections < 1 || f.DatabaseConnections > 10_000 {
		return errors.New("--database-connections must be from 1 to 10000")
	}
	return nil
}

// maxDuration bounds every duration that is a setting.
const maxDuration = 30 * 24 * time.Hour

// Flags are the settings of a node.
type Flags struct {
	RegionFlag
	ServerFlags

	CacheMemory    ByteSize      `help:"Memory for cached pages." default:"256MiB" placeholder:"SIZE"`
	Slot           string        `help:"Replication slot; auto: persistent if max_slot_wal_keep_size is set." enum:"auto,temporary,persistent" default:"auto"`
	FreshnessBound time.Duration `help:"A page served as fresh omits no older commit; 0 = pages expire after --cache-ttl." default:"500ms"`
	Verify         time.Duration `help:"How often a page in memory is compared with the primary; 0 = never." default:"10s"`
	CacheTTL       time.Duration `help:"How long a page is fresh if changes are not followed." default:"2s"`
	MaxStale       time.Duration `help:"How long after that a page may be served, marked as stale, while the database fails." default:"5m"`
	KeyGrace       time.Duration `help:"How long known keys, also revoked ones, stay valid while the database does not answer." default:"5m"`

	NodeID             string              `help:"Unique in the fleet, the same after a restart. Empty: host and port of the admin listener." placeholder:"NAME"`
	LimiterFailureMode limiter.FailureMode `help:"Without Redis: a share of the limit, allow or deny." enum:"local,allow,deny" default:"local" placeholder:"MODE"`

	QueryTimeout time.Duration `help:"Longest time for a page query (statement_timeout)." default:"2s"`

	MaxConnections int  `help:"Open connections of the public listener; more get a 503. 0 = by memory and open files: docs/SIZING.md." default:"0"`
	NoDocs         bool `help:"Do not serve /docs, the interactive API reference; /openapi.json stays."`

	TrustedProxies []netip.Prefix `help:"Networks of load balancers whose X-Forwarded-For header names the client: 10.0.0.0/8,fd00::/8." placeholder:"CIDR"`
	Drain          time.Duration  `help:"How long the node answers after SIGTERM, not ready and closing each connection, before it stops." default:"${drain}"`

	LogFormat string `help:"text or json." enum:"text,json" default:"text"`
	LogLevel  string `help:"The least level that is logged: info, warn or error." enum:"info,warn,error" default:"info" placeholder:"LEVEL"`

	AccessLog edge.AccessLog `help:"off, errors (or stale, slow) or sampled (also misses, some hits)." enum:"off,errors,sampled" default:"off" placeholder:"WHICH"`
}

// Validate refuses settings that cannot work.
func (f *Flags) Validate() error {
	switch {
	case len(f.NodeID) > 255 || strings.ContainsFunc(f.NodeID, unicode.IsControl):
		return fmt.Errorf("--node-id must be one line of at most 255 bytes")
	case len(f.ReplicaURL) > 0 && f.FreshnessBound == 0:
		return fmt.Errorf("--replica-url needs --freshness-bound: only a node that follows changes knows what a replica lacks")
	case f.CacheMemory < 1<<20 || f.CacheMemory > 1<<44:
		return fmt.Errorf("--cache-memory must be from 1MiB to 16TiB")
	case f.FreshnessBound != 0 && f.FreshnessBound < 200*time.Millisecond:
		return fmt.Errorf("--freshness-bound must be 0 or at least 200ms: proofs are up to 150ms old")
	case f.Verify != 0 && f.Verify < 100*time.Millisecond:
		return fmt.Errorf("--verify must be 0 or at least 100ms")
	case f.CacheTTL < 0 || f.MaxStale < 0 || f.KeyGrace < 0 || f.Drain < 0:
		return fmt.Errorf("--cache-ttl, --max-stale, --key-grace and --drain must not be negative")
	case max(f.CacheTTL, f.MaxStale, f.KeyGrace, f.Drain, f.FreshnessBound, f.Verify) > maxDuration:
		return fmt.Errorf("--freshness-bound, --verify, --cache-ttl, --max-stale, --key-grace and --drain must be at most 30 days (720h)")
	case f.MaxConnections < 0 || f.MaxConnections > edge.MaxConnections:
		return fmt.Errorf("--max-connections must be from 0 to %d", edge.MaxConnections)
	case f.QueryTimeout < time.Millisecond || f.QueryTimeout > time.Hour:
		return fmt.Errorf("--query-timeout must be from 1ms to 1h")
	}
	return nil
}

// ByteSize is a number of bytes, written as 512MiB, 2GB or 1048576.
type ByteSize int64

// String is the number with the largest unit that fits.
func (b ByteSize) String() string {
	unit := 0
	for ; unit < 3 && b != 0 && b%1024 == 0; unit++ {
		b /= 1024
	}
	return fmt.Sprint(int64(b), [...]string{"B", "KiB", "MiB", "GiB"}[unit])
}

// UnmarshalText reads a size; a number without a unit is in bytes.
func (b *ByteSize) UnmarshalText(text []byte) error {
	n, err := humanize.ParseBytes(string(text))
	if err != nil || n > math.MaxInt64/2 {
		return fmt.Errorf("%q is not a size like 256MiB", text)
	}
	*b = ByteSize(n)
	return nil
}

// SettingText formats a setting as the value of a flag.
func SettingText(value any) string {
	list := reflect.ValueOf(value)
	if list.Kind() != reflect.Slice {
		return fmt.Sprint(value)
	}
	parts := make([]string, list.Len())
	for i := range parts {
		parts[i] = fmt.Sprint(list.Index(i).Interface())
	}
	return strings.Join(parts, ",")
}
