// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Specs: what is read, what is refused and at which character.
 */
#include "spec/spec.h"
#include "tap.h"

/* Reads it, and prints it as it was understood, presets included if @all. */
static void reads(const char *text, bool all, const char *want)
{
	struct hm_spec *spec;
	char buf[1024];

	if (hm_spec_parse(text, &spec)) {
		ok(false, "%s: %s", text, hetmem_last_error());
		return;
	}
	hm_spec_print(spec, all, buf, sizeof(buf));
	if (!ok(!strcmp(buf, want), "%s", text))
		printf("# is %s, not %s\n", buf, want);
	is(hm_spec_print(spec, all, NULL, 0), strlen(want), "its length");
	hm_spec_free(spec);
}

/* Refuses it at character @at, counted from 1, and says @why. */
static void refuses(const char *text, int at, const char *why)
{
	char where[32];
	struct hm_spec *spec;
	int err = hm_spec_parse(text, &spec);

	snprintf(where, sizeof(where), "character %d,", at);
	if (!ok(err == -EINVAL && strstr(hetmem_last_error(), where) &&
		strstr(hetmem_last_error(), why), "refuses %s", text))
		printf("# %d: %s\n", err, hetmem_last_error());
	if (!err)
		hm_spec_free(spec);
}

static void test_grammar(void)
{
	reads("host", false, "host");
	reads(" host ( ) ", false, "host");
	reads("pool(host)", false, "pool(host)");
	reads("stats(pool(vmm(device=0),max=90%))", false,
	      "stats(pool(vmm(device=0),max=90%))");
	reads("\tstats ( pool ( vmm ( device = 0 ) , max = 90% ) ) ", false,
	      "stats(pool(vmm(device=0),max=90%))");
	reads("pool(max=1G,host)", false, "pool(host,max=1G)");
	reads("pool(host,max= 80 GB )", false, "pool(host,max=\"80 GB\")");
	reads("pool(host,max=\"80 GB\",min=1e9)", false, "pool(host,max=\"80 GB\",min=1e9)");
	reads("log(host,file=\"a,b (c).csv\")", false,
	      "log(host,file=\"a,b (c).csv\")");
	reads("log(host,file='say \"x\"')", false, "log(host,file='say \"x\"')");
	reads("log(host,file=/tmp/x.csv)", false, "log(host,file=/tmp/x.csv)");
	reads("device-pool", false, "device-pool");
	reads("unified(device=1,max=50%)", false, "unified(device=1,max=50%)");
	reads("fallback(pool(device),managed,host)", false,
	      "fallback(pool(device),managed,host)");
	reads("retry(host)", true, "retry(host,times=1,wait=0s)");
	reads("log(host,file=x)", true, "log(host,file=x,full=off)");

	refuses("", 1, "name of a resource");
	refuses("(host)", 1, "name of a resource");
	refuses("frob", 1, "no resource 'frob'; there are device");
	refuses("stats(frob)", 7, "no resource 'frob'");
	refuses("host host", 6, "complete before this");
	refuses("host)", 5, "complete before this");
	refuses("pool(host", 10, "',' or ')'");
	refuses("pool(host,)", 11, "a resource or a parameter");
	refuses("pool(,host)", 6, "a resource or a parameter");
	refuses("pool(host;max=1)", 10, "',' or ')'");
	refuses("pool(host,mx=1)", 11, "pool has no parameter 'mx'; it has max, min");
	refuses("host(x=1)", 6, "it has none");
	refuses("pool(host,max=)", 15, "a value");
	refuses("pool(host,max=1 G B)", 19, "',' or ')'");
	refuses("pool(host,max=1 2)", 17, "',' or ')'");
	refuses("pool(host,max=on G)", 15, "max must be a size");
	refuses("pool(host,max=1,max=2)", 17, "given twice");
	refuses("log(host,file=\"x)", 15, "never closed");
	refuses("stats(host,host)", 12, "takes 1 below it");
	refuses("host(host)", 6, "takes nothing");
	refuses("3", 1, "name of a resource");
	refuses("stats(stats(stats(stats(stats(stats(stats(stats(stats(stats(stats(stats(stats(stats(stats(stats(stats(host)))))))))))))))))",
		97, "inside each other");
}

static void test_stacks(void)
{
	refuses("stats", 6, "needs a resource");
	refuses("stats()", 7, "needs a resource");
	refuses("pool", 5, "needs a provider");
	refuses("pool(vmm,handle=3M)", 17, "a power of two");
	refuses("align(host,align=0)", 18, "a power of two");
	refuses("fallback(host)", 14, "needs 2 resources below it, at least");
	refuses("limit(host)", 1, "needs max=");
	refuses("pool(pool(device))", 6, "cannot be given back in parts");
	refuses("pool(stats(device))", 6, "cannot be given back in parts");
	refuses("pool(device-pool)", 6, "cannot be given back in parts");
	refuses("vmm", 1, "only for a pool");
	refuses("stats(vmm(device=0))", 7, "only for a pool");
	refuses("log(log(host,file=a),file=a)", 19, "another log");
	refuses("pool(vmm,max=0)", 14, "max must be more than 0");
	refuses("async(max=0)", 11, "max must be more than 0");
	refuses("fixed(host,size=0,count=1)", 17, "size must be more than 0");
	refuses("fixed(host,size=1,count=0)", 25, "count must be more than 0");
	refuses("pool(vmm,tag=0123456789abcdef0123456789abcdef)", 14,
		"at most 31 characters");
	refuses("pool(vmm(peers=1,device=x))", 25, "a number");
	refuses("pool(vmm(peers=x))", 16, "ordinals of devices");
	refuses("pool(vmm(peers=1:ro))", 16, "HETMEM_ALIAS_READ");
	refuses("pool(vmm(stripe=0/1:ro))", 17, "HETMEM_ALIAS_READ");
	refuses("stats(binning(host,host,at=2K/1K))", 28, "ascending sizes");
	refuses("binning(host,host,at=1K/2K)", 22,
		"2 of the 1 sizes that 2 resources need");
	refuses("binning(host,host,host,at=1K)", 27,
		"1 of the 2 sizes that 3 resources need");
	reads("log(log(host,file=b),file=a)", false,
	      "log(log(host,file=b),file=a)");
}

static void value(const char *text, enum hm_param_type type, bool good,
		  uint64_t number, bool percent)
{
	struct hm_param param = {
		.name = "x", .type = type, .words = "one|two|three",
	};
	struct hm_value v = { 0 };
	char why[160];
	int err = hm_value_parse(&param, text, &v, why, sizeof(why));

	if (!good) {
		is(err, -EINVAL, "'%s' is refused", text);
		return;
	}
	ok(!err && v.number == number && v.percent == percent, "'%s'", text);
}

static void test_values(void)
{
	value("0", HM_PARAM_SIZE, true, 0, false);
	value("4096", HM_PARAM_SIZE, true, 4096, false);
	value("64K", HM_PARAM_SIZE, true, 65536, false);
	value("64k", HM_PARAM_SIZE, true, 65536, false);
	value("1MiB", HM_PARAM_SIZE, true, 1 << 20, false);
	value("1.5G", HM_PARAM_SIZE, true, 3ULL << 29, false);
	value("2T", HM_PARAM_SIZE, true, 2ULL << 40, false);
	value("7B", HM_PARAM_SIZE, true, 7, false);
	value("0.001K", HM_PARAM_SIZE, true, 1, false);
	value("64K", HM_PARAM_POWER, true, 65536, false);
	value("3M", HM_PARAM_POWER, false, 0, false);
	value("0", HM_PARAM_POWER, false, 0, false);
	value("64KB", HM_PARAM_SIZE, true, 64000, false);
	value("1.5 GB", HM_PARAM_SIZE, true, 1500000000, false);
	value("80GB", HM_PARAM_SHARE, true, 80000000000, false);
	value("80 gib", HM_PARAM_SHARE, true, 80ULL << 30, false);
	value("512MB", HM_PARAM_SIZE, true, 512000000, false);
	value("2tb", HM_PARAM_SIZE, true, 2000000000000, false);
	value("1e9", HM_PARAM_SIZE, true, 1000000000, false);
	value("1.5E+3", HM_PARAM_SIZE, true, 1500, false);
	value("1e3KiB", HM_PARAM_SIZE, true, 1024000, false);
	value("2097152", HM_PARAM_POWER, true, 2 << 20, false);
	value("2MB", HM_PARAM_POWER, false, 0, false);
	value("1e", HM_PARAM_SIZE, false, 0, false);
	value("1e-3", HM_PARAM_SIZE, false, 0, false);
	value("1e19", HM_PARAM_SIZE, false, 0, false);
	value("10e18", HM_PARAM_SIZE, false, 0, false);
	value("1.5", HM_PARAM_SIZE, false, 0, false);
	value("1.5B", HM_PARAM_SIZE, false, 0, false);
	value("1 2K", HM_PARAM_SIZE, false, 0, false);
	value(" 1K", HM_PARAM_SIZE, false, 0, false);
	value("1K ", HM_PARAM_SIZE, false, 0, false);
	value("1Mi", HM_PARAM_SIZE, false, 0, false);
	value("1PB", HM_PARAM_SIZE, false, 0, false);
	value("8388607T", HM_PARAM_SIZE, true, 8388607ULL << 40, false);
	value("8388608T", HM_PARAM_SIZE, false, 0, false);
	value("-1", HM_PARAM_SIZE, false, 0, false);
	value("1.", HM_PARAM_SIZE, false, 0, false);
	value("1.0000001", HM_PARAM_SIZE, false, 0, false);
	value("0x10", HM_PARAM_SIZE, false, 0, false);
	value("16777216T", HM_PARAM_SIZE, false, 0, false);
	value("99999999999999999999", HM_PARAM_SIZE, false, 0, false);
	value("90%", HM_PARAM_SIZE, false, 0, false);
	value("90%", HM_PARAM_SHARE, true, 900000, true);
	value("0.5%", HM_PARAM_SHARE, true, 5000, true);
	value("100%", HM_PARAM_SHARE, true, 1000000, true);
	value("100.1%", HM_PARAM_SHARE, false, 0, false);
	value("0%", HM_PARAM_SHARE, false, 0, false);
	value("3G", HM_PARAM_SHARE, true, 3ULL << 30, false);
	value("10us", HM_PARAM_TIME, true, 10000, false);
	value("1.5ms", HM_PARAM_TIME, true, 1500000, false);
	value("2s", HM_PARAM_TIME, true, 2000000000, false);
	value("2", HM_PARAM_TIME, false, 0, false);
	value("on", HM_PARAM_SWITCH, true, 1, false);
	value("off", HM_PARAM_SWITCH, true, 0, false);
	value("yes", HM_PARAM_SWITCH, false, 0, false);
	value("two", HM_PARAM_WORD, true, 1, false);
	value("three", HM_PARAM_WORD, true, 2, false);
	value("tw", HM_PARAM_WORD, false, 0, false);
	value("12", HM_PARAM_NUMBER, true, 12, false);
	value("12K", HM_PARAM_NUMBER, false, 0, false);
	value("2147483648", HM_PARAM_NUMBER, false, 0, false);
	value("", HM_PARAM_TEXT, false, 0, false);
	value("0123456789abcdef0123456789abcde", HM_PARAM_TAG, true, 0, false);
	value("", HM_PARAM_TAG, false, 0, false);
	value("1/2/3", HM_PARAM_DEVICES, true, 14, false);
	value("63", HM_PARAM_DEVICES, true, 1ULL << 63, false);
	value("64", HM_PARAM_DEVICES, false, 0, false);
	value("1/", HM_PARAM_DEVICES, false, 0, false);
	value("/1", HM_PARAM_DEVICES, false, 0, false);
	value("+1", HM_PARAM_DEVICES, false, 0, false);
	value(" 1", HM_PARAM_DEVICES, false, 0, false);
	value("", HM_PARAM_DEVICES, false, 0, false);
	value("64K", HM_PARAM_SIZES, true, 1, false);
	value("1/2/3/4/5/6/7", HM_PARAM_SIZES, true, 7, false);
	value("1/2/3/4/5/6/7/8", HM_PARAM_SIZES, false, 0, false);
	value("1K/1K", HM_PARAM_SIZES, false, 0, false);
	value("1K/", HM_PARAM_SIZES, false, 0, false);
	value("1K//2K", HM_PARAM_SIZES, false, 0, false);
	value("9000000T/1", HM_PARAM_SIZES, false, 0, false);
}

static void test_bytes(void)
{
	struct hm_spec *spec;

	need(!hm_spec_parse("pool(host,max=12.5%,min=1M)", &spec), "parses");
	is(hm_spec_bytes(spec, "max", 1ULL << 40), 1ULL << 37,
	   "a percentage of all there is");
	is(hm_spec_bytes(spec, "min", 1ULL << 40), 1 << 20,
	   "bytes are bytes");
	is(hm_spec_number(spec, "comm"), 0, "a preset");
	ok(!hm_spec_value(spec, "handle")->text, "one without a preset");
	hm_spec_free(spec);
}

/* No text may do more than be refused. */
static void test_noise(void)
{
	static const char alphabet[] = "pool(vmdaxs,=%1K)\"' \t-stackfifo";
	unsigned int seed = 1, i, j, read = 0;
	struct hm_spec *spec;
	char text[64];

	for (i = 0; i < 50000; i++) {
		size_t len;

		seed = seed * 1103515245 + 12345;
		len = (seed >> 16) % sizeof(text);
		for (j = 0; j < len; j++) {
			seed = seed * 1103515245 + 12345;
			text[j] = alphabet[(seed >> 16) %
					   (sizeof(alphabet) - 1)];
		}
		text[len] = '\0';
		if (!hm_spec_parse(text, &spec)) {
			read++;
			hm_spec_free(spec);
		}
	}
	ok(read < i, "noise: %u of %u were specs", read, i);
}

/* Every row: presets can be read, names are names, the maker is there. */
static void test_table(void)
{
	const struct hm_kind *kind;
	const struct hm_param *param;
	struct hm_value v = { 0 };
	char why[160];
	int bad = 0;

	for (kind = hm_kinds; kind->name; kind++) {
		bad += hm_kind_find(kind->name, strlen(kind->name)) != kind;
		bad += !kind->help;
		/* The list ends. */
		bad += !!kind->params[HM_SPEC_PARAMS - 1].name;
		bad += !kind->provider + !kind->pool + !kind->resource +
			!kind->expand != 3;
		for (param = kind->params; param->name; param++) {
			bad += !param->help;
			if (param->preset &&
			    hm_value_parse(param, param->preset, &v, why,
					   sizeof(why)))
				bad++;
		}
	}
	is(bad, 0, "the table of kinds");
}

int main(void)
{
	test_grammar();
	test_stacks();
	test_values();
	test_bytes();
	test_noise();
	test_table();
	return tap_end();
}
