// The script of a worker as a text; see esbuild.mjs.
declare module "worker:*" {
  const script: string;
  export default script;
}
