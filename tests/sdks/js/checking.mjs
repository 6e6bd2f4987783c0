// Runs the checks of one SDK and tells of each: a line of JSON with its name, and the error where it failed.

export async function run(checks) {
  let failed = false;
  for (const check of checks) {
    const line = { check: check.name };
    try {
      await check();
    } catch (error) {
      line.error = String(error?.stack ?? error);
      failed = true;
    }
    console.log(JSON.stringify(line));
  }
  process.exitCode = failed ? 1 : 0;
}

// What `call` throws.
export async function thrown(call) {
  try {
    await call();
  } catch (error) {
    return error;
  }
  throw new Error("nothing was thrown");
}

// All that a stream yields.
export async function collected(stream) {
  const all = [];
  for await (const one of stream) all.push(one);
  return all;
}
