package doctor

import (
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"listedge/cmd/listedge/node"
	"listedge/origin/admin"
)

func TestVersionsOfRedis(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]admin.Level{
		"": admin.Fail, "5.0.14": admin.Fail, "6.0.16": admin.Fail, "6.2.0": admin.OK, "7.0.15": admin.OK, "10.0.0": admin.OK,
	} {
		var f report
		if f.checkRedisInfo(map[string]string{"redis_version": version}, redis.UniversalOptions{}); !has(f, "redis version", want, version) {
			t.Errorf("%s: %+v, want %s", version, f, want)
		}
	}
}

// The INFO of Valkey 8.0 and 8.1 has other fields for version and mode than that of Redis.
func TestDoctorOfValkey(t *testing.T) {
	t.Parallel()
	several := redis.UniversalOptions{Addrs: []string{"a:1", "b:1"}}
	one := redis.UniversalOptions{Addrs: []string{"a:1"}}
	for _, c := range []struct {
		name, info string
		o          redis.UniversalOptions
		level      admin.Level
		text       string
	}{
		{"a Cluster", "server_mode:cluster\r\nrole:master\r\n# Cluster\r\ncluster_enabled:1\r\n", several, admin.OK, "cluster"},
		{"a Cluster by one address", "server_mode:cluster\r\ncluster_enabled:1\r\n", one, admin.Fail, "names one address"},
		{"a Cluster that does not say its mode", "cluster_enabled:1\r\n", several, admin.OK, "cluster"},
		{"a replica in a Cluster", "role:slave\r\ncluster_enabled:1\r\n", several, admin.OK, "cluster"},
		{"alone", "server_mode:standalone\r\ncluster_enabled:0\r\n", one, admin.OK, "standalone"},
		{"alone, and does not say", "cluster_enabled:0\r\n", one, admin.OK, "standalone"},
		{"alone by several addresses", "cluster_enabled:0\r\n", several, admin.Fail, "no Cluster"},
		{"a Sentinel", "server_mode:sentinel\r\n", one, admin.Fail, "Sentinel"},
	} {
		var found report
		found.checkRedisInfo(node.ParseInfo("# Server\r\nredis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.0.1\r\n"+c.info), c.o)
		if !has(found, "redis mode", c.level, c.text) || !has(found, "redis version", admin.OK, "Valkey 8.0.1") || !has(found, "redis role", admin.OK, "") {
			t.Errorf("%s: %+v", c.name, found)
		}
	}
}

// has reports whether one of the findings on a subject has this level and text.
func has(findings []admin.Finding, subject string, level admin.Level, text string) bool {
	return slices.ContainsFunc(findings, func(f admin.Finding) bool {
		return f.Subject == subject && f.Level == level && strings.Contains(f.Text+f.Do, text)
	})
}
